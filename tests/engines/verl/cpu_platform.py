"""A CPU platform for verl, so that its real engines run over gloo. The one thing that is not real.

verl imports it by `VERL_USE_EXTERNAL_MODULES` and picks it by `VERL_PLATFORM=cpu`.
"""

import functools
import types
from contextlib import contextmanager

import torch
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry

CPU = types.SimpleNamespace(
    **{name: getattr(torch.cpu, name) for name in dir(torch.cpu) if not name.startswith("__")}
)
CPU.max_memory_allocated = CPU.max_memory_reserved = lambda *_: 0
CPU.memory_allocated = CPU.memory_reserved = lambda *_: 0
CPU.mem_get_info = lambda *_: (0, 0)
CPU.empty_cache = lambda: None
CPU.reset_peak_memory_stats = lambda *_: None
CPU.get_rng_state, CPU.set_rng_state = torch.get_rng_state, torch.set_rng_state
CPU.get_device_name = lambda *_: "cpu"
CPU.manual_seed = CPU.manual_seed_all = torch.manual_seed


@PlatformRegistry.register(platform="cpu")
class PlatformCPU(PlatformBase):
    device_name = "cpu"
    vendor_name = "generic"
    device_module = CPU

    def is_available(self):
        return True

    def is_platform_available(self, use_smi_check=False):
        return True

    def current_device(self):
        return torch.device("cpu")

    def device_count(self):
        return 1

    def set_device(self, device_index):
        pass

    def synchronize(self, device_index=None):
        pass

    def manual_seed(self, seed):
        torch.manual_seed(seed)

    def manual_seed_all(self, seed):
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings):
        pass

    def empty_cache(self):
        pass

    def get_device_capability(self, device_index=0):
        return (None, None)

    def communication_backend_name(self):
        return "gloo"

    def visible_devices_envvar(self):
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg):
        yield

    def profiler_start(self):
        pass

    def profiler_stop(self):
        pass

    def cudart(self):
        return None

    def ray_resource_name(self):
        return "NPU"  # verl counts GPUs and NPUs; a local Ray can be told that it has one

    def ray_noset_envvars(self):
        return []

    def ray_resource_options(self, num_gpus):
        return {"resources": {"NPU": num_gpus}}

    def is_ipc_supported(self):
        return False


from verl.utils import distributed  # noqa: E402, after there is a device to ask for

# verl would ask for "cpu:gloo,cpu:gloo", which torch refuses.
distributed.initialize_global_process_group_ray = functools.partial(
    distributed.initialize_global_process_group_ray, backend="gloo"
)
