# Every target is one or two plain commands; read them here and type them yourself if you like.
#
#   PYTHON=...  this interpreter as it is instead of .venv (conda, untested: make lab PYTHON=python)
#   ARGS=...    more arguments for the command, as in: make test ARGS="-k naive"

# Some targets write what others read, so -j must not run two of them at once.
.NOTPARALLEL:
.DEFAULT_GOAL := help
.PHONY: help run lab test gpu notebooks measure tune export pages clean

# Some hundred processes import the same files: compiled once, not in each.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv/$(if $(filter Windows_NT,$(OS)),Scripts/python.exe,bin/python)
BASE := $(or $(PYTHON),$(if $(filter Windows_NT,$(OS)),python,python3))
PY := $(or $(PYTHON),$(VENV))
# helpers/commands/install.py writes it last; it is older than a lock that git pull has just changed.
READY := $(if $(PYTHON),,.venv/installed.txt)
# An upgrade of the system's Python may remove the one that .venv links to: then .venv is made anew.
ifeq ($(shell test -x $(VENV) && echo there),)
.PHONY: $(READY)
endif
# make test also needs nvcc; it is installed again when its lock changes. This nvcc cannot link
# programs with the packages of CUDA 12.
NVCC := $(if $(PYTHON),,.venv/nvcc.txt)
INSTALL_NVCC = $(PY) -m pip install --quiet --disable-pip-version-check --no-deps \
	--only-binary :all: --require-hashes -r requirements/nvcc.txt
# A GPU machine that already has CuPy can record without a set-up.
GPU_PY := $(or $(PYTHON),$(wildcard $(VENV)),$(BASE))
NEED = @$(1) -c "import $(2), ml_dtypes" 2>/dev/null || { echo "$(1) cannot import $(2) and ml_dtypes:" \
	"install them there, or run 'make run' and leave out PYTHON=." >&2; exit 1; }
NEED_CUPY = $(call NEED,$(GPU_PY),cupy)

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' Makefile
	@awk '/^#   / {sub(/^# /, ""); print}' Makefile

$(READY): requirements/cuda12.txt requirements/cuda13.txt
	$(BASE) helpers/commands/install.py

.venv/nvcc.txt: requirements/nvcc.txt $(READY)
	if grep -q "CUDA 12" $(READY); then echo "nvcc is pinned for CUDA 13 alone"; else $(INSTALL_NVCC); fi
	@touch $@

run: $(READY) ## run the series, check every kernel, print a summary (ARGS=--all: deeper ones)
	$(PY) -m helpers.commands.run $(ARGS)

lab: $(READY) ## open your copy of the first notebook, mine/00_the_limit.ipynb, in JupyterLab
	$(PY) -m helpers.commands.lab $(ARGS)

test: $(READY) $(NVCC) ## ruff, the tests, and every notebook against its committed output
	$(PY) -m ruff check .
	$(PY) -m pytest -n 2 --dist worksteal -q -p no:nbval tests $(ARGS)
	$(PY) -m pytest -n 2 --dist loadfile -q -p helpers.base.lean --nbval notebooks

gpu: ## the tests that need a GPU, alone
	$(GPU_PY) -m pytest -m gpu tests $(ARGS)

notebooks: $(READY) ## save what changed: outputs in replay mode, figures of README and kernel headers
	$(PY) -m helpers.commands.run --save $(ARGS)
	$(PY) -m helpers.commands.figures

measure: ## time kernels on this machine's GPU into notebooks/records (ARGS=--help; needs only CuPy)
	$(NEED_CUPY)
	$(GPU_PY) -m helpers.commands.measure $(or $(ARGS),steps)

tune: ## search a faster plan for a shape on this GPU (ARGS="8192x50257 --minutes 5"; --show)
	$(NEED_CUPY)
	$(GPU_PY) -m helpers.commands.tune $(ARGS)

export: $(READY) ## a kernel as one file in exports, for your program (ARGS="best --as torch", "--help")
	$(call NEED,$(PY),numpy)
	$(PY) -m helpers.commands.export $(ARGS)

pages: $(READY) ## the series as web pages in build/pages, which read on a telephone too
	$(PY) -m helpers.commands.pages $(ARGS)

clean: ## remove .venv, build, caches and compiled kernels; mine and exports stay
	$(BASE) -c 'import runpy; runpy.run_path("helpers/simt/cache.py")["clear"]()'
	rm -rf .venv build simt_machine.egg-info .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
