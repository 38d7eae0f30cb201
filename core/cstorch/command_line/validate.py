"""`cstorch validate`: traces a program without compiling or running it, and says what it becomes on CSX."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import runpy
import sys
import traceback
from collections.abc import Iterator

import click

import cstorch
from cstorch.backend import backend
from cstorch.backends.csx import debug
from cstorch.command_line.output import as_json, is_script, named, write_json
from cstorch.constraints import broken_rule
from cstorch.errors import CstorchError, NotExecutedError
from cstorch.report.text import step_lines
from cstorch.validation import Validation
from cstorch.where import is_ours


def _show_rules(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value:
        for rule in cstorch.constraints.RULES.values():
            click.echo(f"{rule.name}\n  {rule.what}.\n  {rule.advice}\n  {rule.source}")
        context.exit()


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--input-fn", metavar="MODULE:FUNCTION", help="Makes the dataloader whose first batch the step is given.")
@click.option(
    "--strict", is_flag=True, help="Look for what the real system is known to refuse; end with status 1 on findings."
)
@click.option("--silence", multiple=True, metavar="RULE", help="With --strict: leave a rule out; may be repeated.")
@click.option("--rules", is_flag=True, is_eager=True, expose_value=False, callback=_show_rules, help="List the rules.")
@as_json
@click.argument("target")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def validate(
    target: str, arguments: tuple[str, ...], input_fn: str | None, strict: bool, silence: tuple[str, ...], json_: bool
) -> None:
    """Trace the steps of a program and report what they become; nothing is compiled, no step is run.

    TARGET is a script, which is run with ARGUMENTS as if by python, or module:step. A traced step needs a batch:
    --input-fn names the function that makes the dataloader. Any other function is called without arguments.

    Ends with status 1 when the program raises an error. With --strict also when it does what the real system is
    publicly known to refuse, as far as the rules know: see --rules.
    """
    error: BaseException | None = None
    validation = Validation(strict=strict)
    silenced_before = debug.silenced_constraints
    try:
        debug.silenced_constraints = (*silenced_before, *silence)
    except ValueError as wrong:
        raise click.BadParameter(f"--silence: {wrong}") from wrong
    with contextlib.redirect_stdout(sys.stderr) if json_ else contextlib.nullcontext(), validation:
        try:
            if is_script(target):
                _run_script(target, arguments)
            else:
                _call(target, input_fn)
        except click.ClickException:
            raise
        except SystemExit as ended:
            error = ended if ended.code not in (None, 0) else None
        except NotExecutedError:
            pass  # of a Trainer, whose first training step was traced
        except Exception as raised:
            error = raised
        finally:
            debug.silenced_constraints = silenced_before
    shown = None if error is None else _words(error, bool(validation.programs))
    if json_:
        steps = [dataclasses.asdict(step) for step in validation.steps]
        write_json({"steps": steps, "findings": validation.findings, "error": shown})
    else:
        click.echo("\n".join(_lines(validation, shown)))
    if shown or not validation.programs or (strict and validation.findings):
        raise click.exceptions.Exit(1)


def _run_script(path: str, arguments: tuple[str, ...]) -> None:
    if not os.path.isfile(path):
        raise click.BadParameter(f"there is no file {path}")
    before = sys.argv, sys.path[:]
    sys.argv = [path, *arguments]
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    try:
        runpy.run_path(path, run_name="__main__")
    finally:
        sys.argv, sys.path[:] = before


def _call(target: str, input_fn: str | None) -> None:
    function = named(target)
    if not callable(function):
        raise click.BadParameter(f"{target!r} is a {type(function).__name__}, not a function")
    if input_fn is None:
        function()
        return
    if cstorch.current_backend(raise_exception=False, raise_warning=False) is None:
        backend("CSX")
    loader = cstorch.utils.data.DataLoader(named(input_fn))
    for batch in cstorch.utils.data.DataExecutor(loader, num_steps=1):
        function(batch)


def _words(error: BaseException, has_traced: bool) -> str:
    if isinstance(error, SystemExit):
        return f"the program ended with status {error.code}."
    rule = broken_rule(error)
    known = f" [{rule.name}: {rule.source}]" if rule is not None else ""
    name = "" if isinstance(error, CstorchError) else f"{type(error).__name__}: "
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not is_ours(frame.filename)]
    where = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames and name else ""
    hint = ""
    if name and has_traced:
        hint = (
            " Nothing was run, so there are no results: leave out what needs them when `not backend.is_e2e_execution`."
        )
    return f"{name}{error}{where}{hint}{known}"


def _lines(validation: Validation, error: str | None) -> Iterator[str]:
    steps, findings = validation.steps, validation.findings
    if error is not None:
        yield f"The program raised an error. {error}"
    elif not steps:
        yield 'No step was traced. Decorate the step with @cstorch.trace and run it on cstorch.backend("CSX").'
    elif findings:
        yield f"It can be traced; {len(findings)} finding{'s' if len(findings) > 1 else ''} to look at."
    else:
        yield "It can be traced, and nothing was found that another system would not take."
    for finding in findings:
        yield f"  - {finding}"
    for step in steps:
        yield ""
        yield from step_lines(step)
