# SPDX-License-Identifier: Apache-2.0
"""What of LMDeploy says "cuda" on the way of a served token, by its releases: data only.

Its engine calls every device "cuda" and leaves it to others to patch torch. Here LMDeploy's own
functions are told the device instead; torch, and whatever else runs in the process, is not touched.
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
    """Of one release: where the word stands, where `torch.cuda` is used, what takes a device type.

    A name is `module:function` or `module:Class.method`.
    """

    words: tuple[str, ...]  # functions whose constant, or default, "cuda" is the device
    modules: tuple[str, ...]  # their global `torch` gets another `torch.cuda`
    to_device: str  # moves a value to the device by its method `cuda`
    config: str  # the class that refuses a device type that it does not know
    selector: str  # from a device type to a back end
    batch_size: str  # the largest batch of a device type
    bfloat16: str  # whether a device type has it
    memory: str  # the device's free and whole memory
    dtype: str  # from what the user asks for to the type of the weights
    dispatcher: str  # its table of device types
    arguments: str  # the command line's `--device`
    latent: str  # asks CUDA for its kernels when it reads the config of a model with such attention
    checker: str  # tries torch on `self.device`; made before LMDeploy imports dlinfer
    dist: str  # reads how many devices a config asks for
    process: str  # the class whose `_mp_proc` is an engine in a process of its own


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

# The model classes that the tests ran, by LMDeploy's names for them.
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
