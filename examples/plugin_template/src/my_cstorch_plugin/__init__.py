"""The plugin's hooks: cstorch imports this module when a program first asks for something by name."""

from cstorch.plugins import hookimpl


@hookimpl
def cstorch_register_profiler_activities(registry):
    from my_cstorch_plugin.step_times import StepTimes

    registry.register(StepTimes)
