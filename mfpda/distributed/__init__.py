"""Several devices and several processes: where arrays live, how processes stop together, signals."""

from mfpda.distributed.mesh import (
    Agreement,
    agreed,
    gathered,
    in_first_process,
    is_lost,
    is_writer,
    mesh_over,
    on_each,
    replicated,
    several_processes,
    spread,
)
