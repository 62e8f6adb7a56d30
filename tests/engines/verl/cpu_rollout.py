"""A rollout server on a CPU for verl: transformers behind the interface of its trainer."""

from typing import Any

import ray
import torch
from transformers import AutoModelForCausalLM
from verl.workers.rollout import base
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry, TokenOutput

NAME = "cpu"


def small_numbers(
    data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None, **_: Any
) -> float:
    """The share of words below the one the problem names: easy to raise, and graded."""
    words = [word for word in solution_str.split() if word.startswith("w")]
    limit = int(ground_truth)
    return sum(int(word[1:]) < limit for word in words) / max(len(words), 1)


@ray.remote(num_cpus=0)
class Server:
    """Samples token by token, one request at a time; the model is tiny."""

    def __init__(self, path: str, longest: int) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(0)
        self.model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        self.longest, self.updates, self.step = longest, 0, 0

    def load(self, weights: dict[str, torch.Tensor], global_steps: int | None) -> None:
        self.model.load_state_dict({name: value.float() for name, value in weights.items()})
        self.updates += 1
        self.step = global_steps or 0

    def nothing(self) -> None:
        """Memory is not released on a CPU."""

    wake_up = sleep = clear_kv_cache = release_kv_cache = resume_kv_cache = nothing
    resume_generation = nothing

    def abort_all_requests(self, reject_request: bool = False) -> None:
        """Requests are answered one after the other; none is left."""

    @torch.no_grad()
    def generate(
        self, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any], **_: Any
    ) -> TokenOutput:
        ids = torch.tensor([list(prompt_ids)])
        temperature = sampling_params.get("temperature", 1.0)
        tokens: list[int] = []
        log_probs: list[float] = []
        for _step in range(self.longest):
            scores = self.model(ids).logits[0, -1] / max(temperature, 1e-3)
            token = torch.multinomial(scores.softmax(-1), 1)
            tokens.append(int(token))
            log_probs.append(float(scores.log_softmax(-1)[token]))
            ids = torch.cat([ids, token[None]], 1)
            if tokens[-1] == self.model.config.eos_token_id:
                break
        return TokenOutput(
            token_ids=tokens,
            log_probs=log_probs,
            stop_reason="completed",
            extra_fields={"global_steps": self.step},
        )


class Replica(RolloutReplica):
    async def launch_servers(self) -> None:
        server = Server.options(name=f"{NAME}_server_{self.replica_rank}").remote(
            self.model_config.path, self.config.response_length
        )
        self.servers = [server]
        self._server_handle, self._server_address = server, f"server{self.replica_rank}"


class Adapter(base.BaseRollout):
    """The training worker's end: hands new weights to the server."""

    async def resume(self, tags: list[str]) -> None:
        pass

    async def release(self) -> None:
        pass

    async def update_weights(self, weights: Any, global_steps: int | None = None, **_: Any) -> None:
        state = {name: value.detach().cpu() for name, value in weights}
        await ray.get_actor(f"{NAME}_server_0").load.remote(state, global_steps)

    def generate_sequences(self, prompts: Any) -> Any:
        raise NotImplementedError("the server generates")


base._ROLLOUT_REGISTRY[(NAME, "async")] = f"{__name__}.Adapter"
RolloutReplicaRegistry.register(NAME, lambda: Replica)
