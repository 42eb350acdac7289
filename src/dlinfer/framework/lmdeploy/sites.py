# SPDX-License-Identifier: Apache-2.0
"""The places in LMDeploy that name "cuda" on the path of a served token, by release: data only.

Its engine calls every device "cuda" and relies on patches of torch. Here LMDeploy's own functions
are patched instead; torch, and other code in the process, is unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass

DEVICE_TYPE = "dlinfer"
# LMDeploy's own device types that it serves by dlinfer, and the vendor of each chip.
CHIPS = {"ascend": "ascend", "maca": "metax", "camb": "camb"}
SERVED = (DEVICE_TYPE, *CHIPS)
ENGINE = "lmdeploy.pytorch.engine"
AGENT = f"{ENGINE}.model_agent.agent"


@dataclass(frozen=True)
class Sites:
    """The places in one release: constants, uses of `torch.cuda`, and uses of a device type.

    A name is `module:function` or `module:Class.method`.
    """

    words: tuple[str, ...]  # functions whose constant, or default, "cuda" is the device
    modules: tuple[str, ...]  # their global `torch` gets another `torch.cuda`
    to_device: str  # moves a value to the device by its method `cuda`
    config: str  # the class that refuses an unknown device type
    selector: str  # from a device type to a backend
    batch_size: str  # the largest batch of a device type
    bfloat16: str  # whether a device type supports it
    memory: str  # the device's free and total memory
    dtype: str  # from the user's dtype to the type of the weights
    dispatcher: str  # its table of device types
    arguments: str  # the command line's `--device`
    latent: str  # queries CUDA's kernels when it reads the config of a model with latent attention
    checker: str  # tests torch on `self.device`; created before LMDeploy imports dlinfer
    dist: str  # reads the number of devices of a config
    process: str  # the class whose `_mp_proc` runs an engine in a separate process


RELEASES: dict[str, Sites] = {
    "0.18": Sites(
        words=(
            "lmdeploy.pytorch.nn.norm:RMSNorm.create_weight",
            "lmdeploy.pytorch.nn.norm:LayerNorm.create_weight",
            "lmdeploy.pytorch.nn.embedding:ParallelEmbedding.create_weight",
            "lmdeploy.pytorch.models.patch:build_model_from_hf_config",
            "lmdeploy.pytorch.models.patch:add_adapters",
            f"{ENGINE}.cache_engine.engine:CacheEngine.allocate_gpu_cache",
            f"{ENGINE}.cache_engine.state:StateCacheEngine.__init__",
            f"{AGENT}:BaseModelAgent.__init__",
            f"{AGENT}:BaseModelAgent._warmup_prefill",
            f"{AGENT}:BaseModelAgent.warmup",
        ),
        modules=(
            AGENT,
            f"{ENGINE}.model_agent.inputs_maker",
            f"{ENGINE}.cache_engine.engine",
            f"{ENGINE}.logits_process",
            "lmdeploy.pytorch.weight_loader.model_weight_loader",
            "lmdeploy.vl.engine",
        ),
        to_device=f"{AGENT}:_try_to_cuda",
        config="lmdeploy.messages:PytorchEngineConfig",
        selector="lmdeploy.pytorch.backends.selector:_get_backend",
        batch_size="lmdeploy.utils:get_max_batch_size",
        bfloat16="lmdeploy.utils:is_bf16_supported",
        memory="lmdeploy.pytorch.utils:get_gpu_memory",
        dtype="lmdeploy.pytorch.config:_update_torch_dtype",
        dispatcher="lmdeploy.pytorch.kernels.dispatcher:FunctionDispatcher",
        arguments="lmdeploy.cli.utils:ArgumentHelper.device",
        latent="lmdeploy.pytorch.configurations.utils:flash_mla_available",
        checker="lmdeploy.pytorch.check_env.torch:TorchChecker.check",
        dist=f"{ENGINE}.config_builder:ConfigBuilder.build_dist_config",
        process=f"{ENGINE}.mp_engine.zmq_engine:ZMQMPEngine",
    ),
}
TESTED = tuple(RELEASES)

# The tested model classes, by LMDeploy's names.
MODELS = (
    "InternLM2ForCausalLM",
    "InternVLForConditionalGeneration",
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "MixtralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen2MoeForCausalLM",
    "Qwen3ForCausalLM",
    "Qwen3MoeForCausalLM",
)
