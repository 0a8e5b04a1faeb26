PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt

# pip would compile everything there is; what is imported is compiled then, once
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup demo test attack lint bench bench-flower bench-peers docs dist browser clean

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

$(VENV)/.dist: constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) build twine
	touch $@

demo: $(VENV)/.base                     ## six methods, five seeds, one report
	$(BIN)/fedapm compare examples/demo.toml --methods fedapm,fedalt,fedsim,fedavg,fedprox,local \
	    --seeds 0,1,2,3,4 --out runs/demo

browser:                                ## Chromium for the report's tests, where it can be had
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null \
	  || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
	       && apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium chromium-driver; } >/dev/null \
	  || echo "No Chromium here: the report's browser tests will be skipped."

test:                                   ## the whole suite; the browser is fetched while the environment is made
	@$(MAKE) --no-print-directory --jobs=2 $(VENV)/.dev browser
	$(BIN)/pytest -n 3 --dist loadfile --no-loadscope-reorder

attack: $(VENV)/.attack                 ## crashes, kills and fuzzing at length; QUICK=--quick for a sample
	$(BIN)/python -m attacks $(QUICK)

lint: $(VENV)/.dev                      ## style, types, architecture, files for CI and containers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/yamllint --strict .github compose.yaml mkdocs.yml .yamllint
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.compose-spec compose.yaml
	$(BIN)/hadolint Dockerfile
	$(BIN)/shellcheck docker/federation .ci/run

bench: $(VENV)/.base                    ## speed, scale, profile, runs side by side; QUICK=--quick for a short one
	$(BIN)/python benchmarks/speed.py $(QUICK)
	$(BIN)/python benchmarks/methods.py $(QUICK)
	$(BIN)/python benchmarks/networks.py $(QUICK)
	$(BIN)/python benchmarks/floor.py $(QUICK)
	$(BIN)/python benchmarks/scale.py $(QUICK)
	$(BIN)/python benchmarks/population.py $(QUICK)
	$(BIN)/python benchmarks/profile_round.py $(QUICK)
	$(BIN)/python benchmarks/side_by_side.py $(QUICK)

bench-flower: $(VENV)/.dev              ## what a round on Flower costs beside the training
	$(BIN)/python benchmarks/deployment.py $(QUICK)

bench-peers:                            ## environment with pfl and Flower for make bench
	PYTHON=$(PYTHON) sh benchmarks/peers/setup.sh

docs: $(VENV)/.docs                     ## the documentation as a web site, in site/
	$(BIN)/mkdocs build --strict

dist: $(VENV)/.dist                     ## wheel and source in dist/, checked; hatchling is all the build needs
	rm -rf dist
	PIP_CONSTRAINT=constraints.txt $(BIN)/python -m build
	$(BIN)/twine check --strict dist/*

clean:
	rm -rf $(VENV) site dist build .pytest_cache .mypy_cache .ruff_cache
