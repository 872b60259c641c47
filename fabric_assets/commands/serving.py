"""`fabric worker` and `fabric contract`: a process that holds one proven engine and takes its contract's work.

Contract: the engine is loaded, validated and checked clause by clause, by the functions that an in-process run uses,
before the worker connects to its queue; it ends with the exit code 78 and the clauses that failed otherwise. It opens
no other engine as long as it lives.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from fabric_assets import cluster
from fabric_assets.instance import open_instance
from io_managers import layout
from io_managers.canary import registered_canary
from io_managers.reading import latest_verdict, read_engine
from resources.attestation import attest, worker_name
from resources.broker.contract import Contract, clauses_of, contract_for, read_contract
from resources.checkpoint import load_tokenizer
from resources.engine.plugins import configured_plugins
from resources.errors import ConfigurationError, EngineError, EngineRefused
from resources.extraction_engine import hold
from resources.proof import ProvenEngine, load
from resources.report import lines

logger = logging.getLogger("fabric.worker")


def serve(engine_dir: Path, *, gpu: int | None, contract_file: Path | None, threads: int | None) -> int:
    """Runs one worker until it is stopped; its exit code. The process cannot be a second one afterwards."""
    url = cluster.broker_url()
    if url is None:
        raise ConfigurationError("FABRIC_BROKER is not set; a worker needs amqp://user:password@host:port/vhost")
    from resources.broker.app import broker_app
    from resources.broker.gate import ForeignWork, run_worker
    from resources.broker.steps import StepOrder, perform

    if contract_file is not None:
        os.environ["FABRIC_CONTRACT"] = str(contract_file.absolute())
    agreed = cluster.contract() or read_contract(layout.contract_path())
    if gpu is not None:
        # Before anything opens CUDA: this process then has one device.
        os.environ["CUDA_VISIBLE_DEVICES"] = str(gpu)
    name = worker_name(gpu)
    with open_instance() as instance:

        def take(message: dict[str, str]) -> None:
            try:
                order = StepOrder(**message)
            except TypeError as error:
                logger.error("a message that is no order is dropped (%s); who else writes to this queue?", error)
                return
            run = instance.get_run_by_id(order.run_id)
            if run is None:
                raise ForeignWork(
                    f"run {order.run_id} is not in this worker's Dagster instance; expected the one that started it; "
                    "give the worker that instance's dagster.yaml"
                )
            logger.info("%s of run %s", order.step_key, order.run_id)
            refused = perform(order, instance, run)
            logger.info("%s of run %s: %s", order.step_key, order.run_id, refused or "done")

        return run_worker(
            broker_app(url),
            agreed.queue,
            name=name,
            admit=lambda: _admit(engine_dir, agreed, name=name, threads=threads),
            perform=take,
        )


def write_contract(engine_id: str | None) -> tuple[Contract, Path]:
    """Writes the contract of the newest engine, or of the one that is named, if it is proved; where it was written."""
    engine = read_engine(layout.lake_path(), engine_id=engine_id)
    verdict = latest_verdict(layout.lake_path(), engine.engine_id)
    if verdict is None or verdict.verdict != "proved":
        raise ConfigurationError(
            f"engine {engine.engine_id} is not proved; expected a newest validation that says so; materialise "
            "engine_validation_report"
        )
    agreed = contract_for(engine)
    path = layout.contract_path()
    whole = path.with_name(f".{path.name}.{os.getpid()}")
    whole.write_text(agreed.to_json() + "\n")
    whole.rename(path)
    return agreed, path


def _admit(engine_dir: Path, agreed: Contract, *, name: str, threads: int | None) -> None:
    """Opens, proves, checks and holds the engine; an `EngineError` says what it does not meet."""
    engine = _proved(engine_dir, threads)
    try:
        canary = registered_canary(layout.lake_path(), agreed.work.model_key, other_than=agreed.engine_id)
        clauses = clauses_of(engine, agreed, canary)
        for clause in clauses:
            verdict = "met" if clause.passed else "FAILED"
            logger.info("  %s: %s: saw %s, expected %s", verdict, clause.name, clause.seen, clause.expected)
        if failed := [clause.name for clause in clauses if not clause.passed]:
            raise EngineError(f"contract {agreed.digest} is not met: {', '.join(failed)}; give the engine it names")
    except BaseException:
        engine.close()
        raise
    hold(engine, attest(engine, worker=name, contract=agreed.digest), load_tokenizer(engine_dir))
    logger.info("worker %s serves %s with engine %s", name, agreed.queue, engine.engine_id)


def _proved(engine_dir: Path, threads: int | None) -> ProvenEngine:
    try:
        return load(engine_dir, threads=threads, plugins=configured_plugins(), progress=logger.info)
    except EngineRefused as refusal:
        logger.info("%s", "\n".join(lines(refusal.report)))
        raise
