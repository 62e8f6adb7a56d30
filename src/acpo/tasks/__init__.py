"""Problems, prompts and graders: the tasks that come with the package, and everybody's own."""

from acpo.tasks.chain import ChainProblem, chain_problems
from acpo.tasks.grading import reward_function
from acpo.tasks.problems import Cleaning, Problem, load_problems
from acpo.tasks.registry import BENCHMARKS, PAPER, TASKS, get_task, import_reward
from acpo.tasks.task import Columns, Task
from acpo.tasks.templates import TEMPLATES, get_template
from acpo.verify.verdict import Outcome, Verdict

__all__ = [
    "BENCHMARKS",
    "PAPER",
    "TASKS",
    "TEMPLATES",
    "ChainProblem",
    "Cleaning",
    "Columns",
    "Outcome",
    "Problem",
    "Task",
    "Verdict",
    "chain_problems",
    "get_task",
    "get_template",
    "import_reward",
    "load_problems",
    "reward_function",
]
