"""What the scripts beside this one share. Needs torch and transformers; without them a script ends with code 77, which
CTest counts as skipped."""
import json
import os
import sys

SKIPPED = 77

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
try:
    import torch
    import transformers
    from safetensors import safe_open
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(SKIPPED)

torch.set_num_threads(1)
transformers.utils.logging.disable_progress_bar()


class Failure(Exception):
    """What was compared and does not agree."""


FLOAT64 = torch.float64
_float32, _to_float = torch.float32, torch.Tensor.float


class all_in:
    """Within it, models compute in `dtype`. transformers takes norms, rotary angles and softmax in float32 whatever the
    model's type is; for float64 every float32 becomes float64, so that results hold to rounding."""

    def __init__(self, dtype):
        self.dtype = dtype

    def __enter__(self):
        if self.dtype == FLOAT64:
            torch.set_default_dtype(FLOAT64)
            torch.float32 = torch.float = FLOAT64
            torch.Tensor.float = torch.Tensor.double

    def __exit__(self, *unused):
        torch.set_default_dtype(_float32)
        torch.float32 = torch.float = _float32
        torch.Tensor.float = _to_float


def build(config):
    config._attn_implementation = "eager"
    return transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()


def load(folder):
    """The model that transformers makes of a folder, in the stored type. Tensors that are missing, unexpected or of
    another shape are a Failure: transformers itself would only warn, and fill in random numbers."""
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype="auto", attn_implementation="eager", output_loading_info=True)
    for kind, names in info.items():
        if names:
            raise Failure(f"{kind}: {names}")
    return model.eval()


def logits_of(folder, tokens, dtype):
    """Logits [B, S, V] as float64, with all computed in `dtype`."""
    loaded = load(folder)
    with all_in(dtype), torch.no_grad():
        model = build(loaded.config).to(dtype)
        model.load_state_dict({name: value.to(dtype) for name, value in loaded.state_dict().items()})
        return model(input_ids=torch.tensor(tokens), use_cache=False).logits.to(FLOAT64)


def folders_in(parent):
    """The folders in `parent`; none at all ends the script as skipped, since nothing was made to be compared."""
    names = sorted(os.listdir(parent)) if os.path.isdir(parent) else []
    if not names:
        print(f"skipped: no folders in {parent}")
        sys.exit(SKIPPED)
    return [os.path.join(parent, name) for name in names]


def weight_files(folder):
    """Files with weights, as a reader finds them: the single file, else those of the index."""
    single = os.path.join(folder, "model.safetensors")
    if os.path.exists(single):
        return [single]
    with open(os.path.join(folder, "model.safetensors.index.json")) as file:
        names = sorted(set(json.load(file)["weight_map"].values()))
    return [os.path.join(folder, name) for name in names]


def tensors_of(folder):
    """name -> tensor, of all weight files."""
    tensors = {}
    for path in weight_files(folder):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():
                if name in tensors:
                    raise Failure(f"{name} is in two files of {folder}")
                tensors[name] = file.get_tensor(name)
    return tensors
