PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt

# pip would compile everything there is; what is imported is compiled then, once
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup demo test attack lint bench bench-flower bench-peers docs browser clean

setup: $(VENV)/.dev                     ## environment with everything development needs

$(VENV)/.base: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) --editable .
	touch $@

$(VENV)/.dev: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) --no-compile --editable '.[dev]'
	touch $(VENV)/.base $@

$(VENV)/.attack: $(VENV)/.dev
	$(PIP) --editable '.[dev,attack]'
	touch $@

$(VENV)/.docs: $(VENV)/.base
	$(PIP) --editable '.[docs]'
	touch $@

demo: $(VENV)/.base                     ## six methods, three seeds, one report
	$(BIN)/fedapm compare --data digits --methods fedapm,fedalt,fedsim,fedavg,fedprox,local \
	    --seeds 0,1,2 --out runs/demo

browser:                                ## Chromium for the report's tests, where it can be had
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null \
	  || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
	       && apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium chromium-driver; } >/dev/null \
	  || echo "No Chromium here: the report's browser tests will be skipped."

test:                                   ## the whole suite; the browser is fetched while the environment is made
	@$(MAKE) --no-print-directory --jobs=2 $(VENV)/.dev browser
	$(BIN)/pytest -n 3

attack: $(VENV)/.attack                 ## crashes, kills and fuzzing at length; QUICK=--quick for a sample
	$(BIN)/python -m attacks $(QUICK)

lint: $(VENV)/.dev                      ## style, types, architecture
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.base                    ## speed, scale and profile; QUICK=--quick for a short one
	$(BIN)/python benchmarks/speed.py $(QUICK)
	$(BIN)/python benchmarks/scale.py $(QUICK)
	$(BIN)/python benchmarks/profile_round.py $(QUICK)

bench-flower: $(VENV)/.dev              ## what a round on Flower costs beside the training
	$(BIN)/python benchmarks/deployment.py $(QUICK)

bench-peers:                            ## environment with pfl and Flower for make bench
	PYTHON=$(PYTHON) sh benchmarks/peers/setup.sh

docs: $(VENV)/.docs                     ## the documentation as a web site, in site/
	$(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) site dist build .pytest_cache .mypy_cache .ruff_cache
