"""The provider role: serves tasks and is paid for them."""
