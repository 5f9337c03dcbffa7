# make demo: a story.  make test: the tests.  make soak: those that take long.  make clients: other
# people's programs against the server; make clients-all: all of them, which takes long.  make scaleout: batch runs on
# Ray.  make test-browser: the pages of replay and the site, in Chromium.  make test-arm: the kernels by other
# compilers, for ARM in an emulator.  make test-cuda: the stages on a GPU.  make notebooks: run them again.  make site:
# the chapters, notebooks, exercises and replays as web pages.  All make .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The tests start hundreds of processes; each would compile the stages again.
unexport PYTHONDONTWRITEBYTECODE
TEST_NEEDS := pyproject.toml exercises/requirements.txt tests/requirements.txt
CLIENTS := openai lm-eval vllm-tests
# What a target needs: a program or a file, and its package on Debian.
BROWSER := chromium:chromium chromedriver:chromium-driver npm:npm
ARM := aarch64-linux-gnu-gcc:gcc-aarch64-linux-gnu /usr/aarch64-linux-gnu/include:libc6-dev-arm64-cross \
	qemu-aarch64:qemu-user clang:clang /usr/lib/llvm-*/lib/libomp.so:libomp-dev
# Name the packages of those that are missing, and no others: they may come from elsewhere, as npm with NodeSource's nodejs.
need = missing=; for one in $(1); do command -v $${one%:*} > /dev/null || ls -d $${one%:*} > /dev/null 2>&1 || \
	missing="$$missing $${one\#*:}"; done; test -z "$$missing" || { echo "on Debian: apt-get install$$missing"; exit 1; }

.PHONY: demo test soak clients clients-all scaleout test-browser test-arm test-cuda lint notebooks site

demo: $(VENV)/installed
	$(BIN)/python -m stage05 --temperature 0.8 --max-tokens 1000 --prompts \
		"Once upon a time" \
		"In the days when the winters were long, a brave mouse named Otto lived near a windy harbor." \
		"There was once a shy bear"

test: $(VENV)/installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/zizmor --offline --quiet .github
	@# The types are checked meanwhile, and told at the end. A third worker made the tests slower.
	$(BIN)/pyright --project . > $(VENV)/types 2>&1 & types=$$!; \
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not soak and not arm and not cuda"; tests=$$?; \
	wait $$types; types=$$?; cat $(VENV)/types; test $$tests = 0 && test $$types = 0

soak: $(VENV)/installed-test
	$(BIN)/python -m pytest -n 2 -m "soak and not arm and not cuda"

clients: $(VENV)/installed-test
	$(BIN)/python -m tests.clients $(CLIENTS)
	$(BIN)/python -m tests.clients.load --seconds 20

clients-all: $(VENV)/installed-test
	$(BIN)/python -m tests.clients --all --keep-none

scaleout: $(VENV)/installed-scaleout
	$(BIN)/python -m pytest tests/scaleout

# One process has the site, which it builds; another one has the other pages.
test-browser: $(VENV)/installed-browser
	@$(call need,$(BROWSER))
	@test -e .axe/package || { mkdir -p .axe && cd .axe && npm pack --silent axe-core@4 && tar -xzf axe-core-*.tgz; }
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder tests/browser

test-arm: $(VENV)/installed-test
	@$(call need,$(ARM))
	$(BIN)/python -m pytest -m arm tests/test_other_cpus.py

test-cuda: $(VENV)/installed-test
	STAGEWISE_TEST_CUDA=1 $(BIN)/python -m pytest tests/test_cuda.py tests/test_attention.py -k "cuda or triton"

notebooks: $(VENV)/installed-test
	$(BIN)/python tools/run_notebooks.py

site: $(VENV)/installed-site
	$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going -c docs/site -d docs/site/_build/doctrees . docs/site/_build/html
	@echo "the site is at docs/site/_build/html/index.html; python -m http.server --directory docs/site/_build/html serves it"

lint: $(VENV)/installed-test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: $(BIN)/python pyproject.toml exercises/requirements.txt
	$(BIN)/python -m pip install --quiet --editable . --requirement exercises/requirements.txt
	touch $@

# Python compiles what is imported; to compile all takes longer than to install it.
$(VENV)/installed-test: $(BIN)/python $(TEST_NEEDS)
	$(BIN)/python -m pip install --quiet --no-compile --requirement tests/requirements.txt
	touch $@

$(VENV)/installed-browser: $(BIN)/python $(TEST_NEEDS) tests/browser/requirements.txt docs/site/requirements.txt
	$(BIN)/python -m pip install --quiet --requirement tests/browser/requirements.txt
	touch $@

$(VENV)/installed-scaleout: $(BIN)/python $(TEST_NEEDS) tests/scaleout/requirements.txt
	$(BIN)/python -m pip install --quiet --requirement tests/scaleout/requirements.txt
	touch $@

$(VENV)/installed-site: $(BIN)/python pyproject.toml docs/site/requirements.txt
	$(BIN)/python -m pip install --quiet --editable . --requirement docs/site/requirements.txt
	touch $@
