"""How does the time for a fixed number of steps fall with the number of actors, and what stops it?"""

from quarl_lib.studies.actor_scaling.study import Config, project, run, summarize

__all__ = ["Config", "project", "run", "summarize"]
