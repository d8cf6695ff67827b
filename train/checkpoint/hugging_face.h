#pragma once
// Between checkpoints and Hugging Face folders, one tensor at a time: no model is built and none is held whole.

#include <cstdint>
#include <optional>
#include <string>

#include <c10/core/ScalarType.h>

namespace tetra {

/// The tensors of a checkpoint that are the model's weights have this before their Hugging Face name. The member
/// "model_config" of the checkpoint's state is the model's config.json.
inline constexpr const char* kWeightsPrefix = "weights/";
inline constexpr const char* kModelConfigField = "model_config";

/// Writes config.json and model.safetensors (or shards of at most `max_shard_bytes` with an index) into `folder`, from
/// `checkpoint`, which is read and verified as a whole first. Weights are in `dtype` (fp64, fp32, fp16 or bf16), or as
/// they are stored; a tied head is written once, under the embedding's name. Every file appears whole or not at all,
/// and an earlier export stays as it was when this one fails.
void export_checkpoint(const std::string& checkpoint, const std::string& folder, std::optional<at::ScalarType> dtype,
                       int64_t max_shard_bytes);

/// Writes DIR/step-00000000, a checkpoint of weights alone that training starts from: fp64 where stored so, else fp32.
/// Throws Error where the weights are not as many as config.json describes. Returns the checkpoint's path.
std::string import_hugging_face(const std::string& folder, const std::string& dir);

/// The checkpoint that a path means: itself, or the newest one in it that is whole. Newer ones that are not are told in
/// `skipped`. Throws Error where there is none.
struct FoundCheckpoint {
  std::string path;
  std::string skipped;
};
FoundCheckpoint find_checkpoint(const std::string& path);

}  // namespace tetra
