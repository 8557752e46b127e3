"""What --driver and the like may say."""

import pytest

from nodewire.cli.buy.provider_options import from_whom
from nodewire.config import CustomerConfig, ProviderChoice
from nodewire.errors import BadInput

NOBODY = {"driver": None, "trusted": None, "ends": None, "exclude": None, "region": None}


@pytest.mark.parametrize(
    ("option", "said"), [("driver", "foo"), ("trusted", ["bob"]), ("ends", ["bob"]), ("exclude", ["7"] * 65)]
)
def test_what_cannot_be_is_named_by_its_option(option, said):
    config = CustomerConfig.model_construct(whom=ProviderChoice())
    with pytest.raises(BadInput) as error:
        from_whom(config, **{**NOBODY, option: said})
    assert error.value.field == f"--{option}"
    assert "validation error" not in error.value.reason and "pydantic" not in error.value.reason
    assert from_whom(config, **NOBODY) is config
    assert from_whom(config, **{**NOBODY, "driver": "local"}).whom.driver == "local"
