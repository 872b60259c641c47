"""The options of the command line that several commands share, or that belong together."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from resources.probe_files import ProbeFormat
from resources.probe_files.register import SHARD_ROWS

Command = Callable[..., None]

_TOKENIZER_FIELDS = ("over_long", "add_bos", "add_eos", "parse_special", "chat", "chat_date", "chat_variables")
"""Fields of the `model` resource, and options of the same names."""

_FORMAT_FIELDS = ("text_field", "id_field", "token_ids_field", "messages_field")
"""Fields of `ProbeFormat`, and options of the same names."""

name_option = click.option("--name", default=None, help="The probe set's name; unset: from the file's name.")

precision_option = click.option(
    "--precision",
    type=click.Choice(["float32", "float16", "bfloat16"]),
    default="float32",
    show_default=True,
    help="Of weights and states; vectors are stored in it, one table for each.",
)


def probe_options(command: Command) -> Command:
    """The options that say how a probe file is read and cut."""
    return _decorated(
        command,
        click.argument("probes", type=click.Path(exists=True, path_type=Path)),
        click.option("--text-field", default="text", show_default=True, help="Field that holds the text."),
        click.option("--id-field", default=None, help="Field that holds the probe id; unset: file name and row."),
        click.option("--token-ids-field", default=None, help="Field of given token ids, used instead of a text."),
        click.option(
            "--messages-field",
            default=None,
            help="Field of a chat, a list of {role, content}, used instead of a text; needs --chat.",
        ),
        click.option(
            "--format",
            "file_format",
            type=click.Choice(["auto", "jsonl", "parquet", "csv", "text"]),
            default="auto",
            show_default=True,
            help="auto: by the file's ending.",
        ),
        click.option(
            "--shard-rows",
            type=click.IntRange(min=1),
            default=SHARD_ROWS,
            show_default=True,
            help="Most rows of one partition.",
        ),
    )


def model_options(command: Command) -> Command:
    """The options that name the model, say how a probe becomes tokens and what one packed batch holds."""
    return _decorated(
        command,
        click.option(
            "--model",
            default=None,
            help="A folder, a GGUF file or a hub id; unset: FABRIC_MODEL, else the packaged model.",
        ),
        click.option(
            "--over-long",
            type=click.Choice(["refuse", "truncate_left", "truncate_right"]),
            default="refuse",
            show_default=True,
            help="What happens to a probe with more tokens than --max-tokens.",
        ),
        click.option("--bos/--no-bos", "add_bos", default=None, help="BOS first or not; unset: as the model says."),
        click.option("--eos/--no-eos", "add_eos", default=None, help="EOS last or not; unset: as the model says."),
        click.option(
            "--parse-special/--no-parse-special",
            default=True,
            show_default=True,
            help="Read a special token spelled in a text as that token, or as characters.",
        ),
        click.option(
            "--chat",
            type=click.Choice(["none", "turns", "generation_prompt"]),
            default="none",
            show_default=True,
            help="Apply the model's chat template, and open the assistant's next turn or not; a text is a user's.",
        ),
        click.option("--chat-date", default=None, help="YYYY-MM-DD: today, to a template that asks for the date."),
        click.option("--chat-variables", default=None, help="A JSON object of further variables for the template."),
        click.option(
            "--max-tokens",
            type=click.IntRange(min=2),
            default=1024,
            show_default=True,
            help="Most tokens of one sequence.",
        ),
        click.option(
            "--max-batch-tokens",
            type=click.IntRange(min=8),
            default=2048,
            show_default=True,
            help="Most tokens of one packed batch.",
        ),
        click.option(
            "--max-batch-size",
            type=click.IntRange(min=4),
            default=64,
            show_default=True,
            help="Most sequences of one packed batch.",
        ),
    )


def model_settings(options: dict[str, Any]) -> dict[str, Any]:
    """Takes what `model_options` set out of `options`: the fields of the `model` resource that are not left open."""
    model, max_tokens = options.pop("model"), options.pop("max_tokens")
    settings = {name: options.pop(name) for name in _TOKENIZER_FIELDS} | {
        # A run may have another working directory.
        "checkpoint": str(Path(model).resolve()) if model and Path(model).exists() else model,
        "max_input_len": max_tokens,
        "max_num_tokens": max(options.pop("max_batch_tokens"), max_tokens),
        "max_batch_size": options.pop("max_batch_size"),
    }
    if options["messages_field"] and settings["chat"] == "none":
        raise click.UsageError("--messages-field needs --chat turns or --chat generation_prompt")
    return {name: value for name, value in settings.items() if value is not None}


def probe_format(options: dict[str, Any]) -> ProbeFormat:
    """Takes what `probe_options` say of a file's format out of `options`."""
    return ProbeFormat(format=options.pop("file_format"), **{name: options.pop(name) for name in _FORMAT_FIELDS})


def _decorated(command: Command, *options: Callable[[Command], Command]) -> Command:
    for option in reversed(options):
        command = option(command)
    return command
