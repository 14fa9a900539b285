# make train   install everything into .venv and train a model on two ranks
# make test    install everything into .venv and run the tests, in three processes;
#              JOBS=4 takes four
# make test-quick
#              the tests that neither start mpiexec nor take long, in a minute or so
# make test-all
#              the same with all combinations of schedules, ranks, transports and
#              models, and with new random examples for the property tests
# make test-faults
#              let each call of the operating system fail that saves and loads of
#              snapshots make, in each way, and say how many did no harm
# make test-kills KILLS=200
#              kill training runs at random moments, so often, and resume them on other
#              numbers of ranks; SEED=... repeats what a failure has printed
# make test-composition N=1000
#              draw so many models, ways to run them and lives, compare each with stock
#              Chainer, and write docs/explanation/composition.rst; SEED=... draws others
# make lint    check the style of the code and of its English, and which package imports
#              which
# make docs    build the documentation into build/docs; warnings are errors
# make install only install; "make install EXTRAS=examples,test" without an MPI
#              library, for a system MPI; "make install NUMPY='<2.4'" with an older
#              NumPy, for scripts that need one
# make wheels  the wheels of this project and of all that it needs, in wheels/, for hosts
#              without a network or a compiler; WHEELS=examples without an MPI library
# make test-chainer CHAINER_SRC=DIR
#              run Chainer's own tests, and its example scripts ported to a pipeline,
#              from a clone of Chainer's repository at v7.8.1; with KERNELS=1 its
#              tests run on the kernels of chainer_kernels
VENV ?= .venv
# What the environment was made with, if there is one, or else these.
MADE_WITH := $(shell cat $(VENV)/installed 2>/dev/null || \
               echo python3 mpich,examples,test,lint,docs)
PYTHON ?= $(word 1,$(MADE_WITH))
EXTRAS ?= $(word 2,$(MADE_WITH))
# Versions of NumPy, such as <2.4 or ==1.26.*; nothing for the newest.
NUMPY ?= $(word 3,$(MADE_WITH))
ifneq ($(filter-out <% >% =% !% ~%,$(firstword $(NUMPY))),)
$(error NUMPY is '$(NUMPY)'; it is a condition, such as NUMPY='<2.4')
endif
BIN := $(VENV)/bin
# The environment's own mpiexec, or that of a system MPI.
MPIEXEC ?= $(or $(wildcard $(BIN)/mpiexec),mpiexec)
RANKS ?= 2
# Processes that test, one more than the cores of a small machine: ranks that wait for
# each other sleep. The tests of a module stay together. In their own order: the last
# modules are quick, so that no process waits long for another.
JOBS ?= 3
PYTEST = $(BIN)/python -m pytest --numprocesses $(JOBS) --dist loadfile \
  --no-loadscope-reorder
# The extras whose wheels "make wheels" collects.
WHEELS ?= mpich,examples

# pip 25.3 and newer read the second variable for build environments, older
# ones the first (constraints.txt says why they are needed). Either splits it at blanks.
export PIP_CONSTRAINT := file://$(subst $() $(),%20,$(CURDIR))/constraints.txt
export PIP_BUILD_CONSTRAINT := $(PIP_CONSTRAINT)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# One thread per rank: several ranks share this machine's cores.
export OMP_NUM_THREADS ?= 1

.PHONY: install train test test-quick test-all test-faults test-kills test-composition test-chainer wheels lint docs clean

# An interpreter, extras or a NumPy asked for by name replace an environment with
# others.
WANTED = $(strip $(PYTHON) $(EXTRAS) $(subst $() $(),,$(NUMPY)))
ifneq ($(origin PYTHON)$(origin EXTRAS)$(origin NUMPY),filefilefile)
ifneq ($(MADE_WITH),$(WANTED))
.PHONY: $(VENV)/installed
endif
endif

# Prints what pip does, without the lines of steps within a package, and ends with its
# exit code.
STEPS_OF_PIP = while IFS= read -r line; do case "$$line" in \
    "status "*) exit "$${line\#status }" ;; \
    "  "*Downloading*|"  "*"Using cached"*|"  "*Preparing*|"  "*Getting*) ;; \
    "  "*Installing*|"  "*Building*|"  "*Checking*|"  "*Created*|"  "*Stored*) ;; \
    "Requirement already"*) ;; \
    *) echo "$$line" ;; \
  esac; done

install: $(VENV)/installed

$(VENV)/installed: setup.cfg setup.py pyproject.toml constraints.txt
	$(PYTHON) -m venv --clear $(VENV)
	@echo "Installing into $(VENV); this takes a minute or two"
	@{ $(BIN)/python -m pip install --progress-bar off --editable '.[$(EXTRAS)]' \
	    'numpy$(NUMPY)' 2>&1; echo "status $$?"; } | $(STEPS_OF_PIP)
	@echo '$(WANTED)' > $@

train: install
	$(MPIEXEC) -n $(RANKS) $(BIN)/python examples/train/train.py

# What fails beside other tests is tried again alone: a machine that is busy for a while
# decides nothing, and what fails twice fails. Both tries are printed.
test: install
	@$(PYTEST) || { code=$$?; test $$code = 1 || exit $$code; \
	  echo "The tests that failed run again, alone"; \
	  $(BIN)/python -m pytest --last-failed --last-failed-no-failures none -v; }

test-quick: install
	$(BIN)/python -m pytest --quick -r fE

# An expression that is true for every test.
test-all: install
	$(PYTEST) -m "matrix or not matrix" --hypothesis-profile=new_examples

test-faults: install
	$(BIN)/python -m pytest -m matrix -rP \
	  tests/pipeline/snapshots/test_injected_faults.py \
	  tests/mpi/pipeline/snapshots/test_injected_faults.py \
	  tests/mpi/pipeline/copies/test_copy_faults.py

test-kills: install
	KILLS=$(or $(KILLS),200) SEED=$(SEED) $(BIN)/python -m pytest -m matrix -s \
	  tests/mpi/pipeline/snapshots/test_kills.py \
	  tests/mpi/pipeline/copies/test_losses.py tests/mpi/torch_layers/test_kills.py

test-composition: install
	$(BIN)/python -m tests.composition -n $(or $(N),1000) --seed $(or $(SEED),1) \
	  --shrink --tally tests/composition/counts.json \
	  --page docs/explanation/composition.rst

# Chainer's tests have an environment of their own: they need a pytest before version 8.
test-chainer: install .venv-chainer/installed
	@test -d "$(CHAINER_SRC)/tests" || \
	  { echo "CHAINER_SRC=DIR must name a source tree of Chainer 7.8.1"; exit 2; }
	CHAINER_SRC="$(CHAINER_SRC)" $(BIN)/python -m pytest \
	  tests/examples/test_chainer_scripts.py tests/examples/test_train_vae.py \
	  tests/examples/test_train_dcgan.py tests/examples/test_seq2seq.py
	CHAINER_KERNELS=$(or $(KERNELS),0) \
	  .venv-chainer/bin/python tests/chainer_suite/run.py "$(CHAINER_SRC)"

.venv-chainer/installed: setup.cfg setup.py tests/chainer_suite/requirements.txt
	$(PYTHON) -m venv .venv-chainer
	.venv-chainer/bin/python -m pip install --quiet --editable '.[mpich]' \
	  --requirement tests/chainer_suite/requirements.txt
	touch $@

# Chainer's wheel is built here too: its source needs a setuptools that hosts may lack.
wheels: install
	rm -rf wheels
	$(BIN)/python -m pip wheel --quiet --wheel-dir wheels '.[$(WHEELS)]' \
	  'numpy$(NUMPY)'
	@echo "$$(ls wheels | wc -l) wheels in wheels/; where they are copied to:"
	@echo "  pip install --no-index --find-links wheels 'divisible[$(WHEELS)]'"

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache
	$(BIN)/python -m tests.support.import_circles
	$(BIN)/python -m tests.support.plain_words

docs: install
	$(BIN)/python -m sphinx -W --keep-going --quiet \
	  -d build/doctrees docs build/docs

clean:
	rm -rf $(VENV) .venv-chainer build wheels docs/_pictures *.egg-info
