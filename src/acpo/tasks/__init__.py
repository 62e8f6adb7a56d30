"""Prompts, gold answers and rewards of each data set, and the procedural task."""

from acpo.tasks.chain import ChainProblem, Mistakes, chain_problems, chain_reward
from acpo.tasks.problems import Cleaning, Columns, Problem
from acpo.tasks.registry import TASKS, Task, get_task, import_reward, load_problems
from acpo.tasks.templates import TEMPLATES, get_template

__all__ = [
    "TASKS",
    "TEMPLATES",
    "ChainProblem",
    "Cleaning",
    "Columns",
    "Mistakes",
    "Problem",
    "Task",
    "chain_problems",
    "chain_reward",
    "get_task",
    "get_template",
    "import_reward",
    "load_problems",
]
