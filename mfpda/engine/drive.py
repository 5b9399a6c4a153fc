"""The outer loop: it drives a run from step to step, with progress bar, signals and early stops."""

from dataclasses import dataclass

from tqdm import tqdm

from mfpda.distributed import Agreement, agreed, is_lost, several_processes, signals
from mfpda.engine.run import Run
from mfpda.errors import Status


@dataclass(frozen=True)
class Outcome:
    """How a run ended: its status, its error, and whether SIGTERM ended it."""

    status: Status
    failure: Exception | None = None
    terminated: bool = False


def drive(run: Run) -> Outcome:
    """Take outer steps until the run ends, and write its last checkpoint, whatever ends it."""
    plan, status, failure = run.plan, Status.FINISHED, None
    with signals.catch_stop_signals() as stop_request:
        run.open_checkpoint()  # from here on a run that ends says where it can be resumed
        total = None if plan.settings.until_certified else plan.outer_steps
        bar = tqdm(total=total, initial=run.progress.t, disable=plan.silent, desc="mfpda", unit="step")
        try:
            stop_request.defer(several_processes())
            with Agreement(stop_request) as agreement:
                status = _loop(run, agreement, bar)
        except KeyboardInterrupt:
            status = Status.INTERRUPTED
        except Exception as error:
            if several_processes() and is_lost(error):
                raise  # the processes cannot gather a fit without the lost one
            status, failure = Status.FAILED, error
        finally:
            stop_request.deferred = True  # what is left is short, and must not be interrupted
            bar.close()
        run.step_back_to(-agreed(-run.progress.t))
        broken = run.close(status)
    if broken:
        return Outcome(Status.FAILED, failure or broken, stop_request.terminated)
    return Outcome(status, failure, stop_request.terminated)


def _loop(run: Run, agreement: Agreement, bar: tqdm) -> Status:
    """Outer steps until the run is long enough, is certified or cannot be, or cannot go further."""
    agreement.check()
    run.finish_pending_certificate()
    while not agreement.reached(run.certified or run.stalled) and run.progress.t < run.plan.outer_steps:
        certifies = run.plan.certifies(run.progress.t + 1)
        bar.set_description("mfpda, step and certificate" if certifies else "mfpda")
        ended = run.step(agreement)
        if ended:
            return ended
        bar.set_postfix(run.shown(), refresh=False)
        bar.update()
    return run.status
