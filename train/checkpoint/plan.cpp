#include "train/checkpoint/plan.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <limits>
#include <string_view>

#include "kernels/error.h"
#include "models/safetensors_format.h"
#include "models/strict_json.h"

namespace tetra {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

// The text's own checksum is taken with zeros in its place; it stands in the first line, after this.
constexpr std::string_view kSumField = "\"xxh3_64\": \"";
constexpr std::string_view kNoSum = "0000000000000000";

std::string json_text(const std::string& text) {
  try {
    return json(text).dump();
  } catch (const json::exception& error) {
    fail("a name in a checkpoint is not valid UTF-8: {}", error.what());
  }
}

std::string chunk_text(const PlannedChunk& chunk) {
  return fmt::format(R"({{"file": {}, "begin": {}, "offsets": [{}], "sizes": [{}]}})", json_text(chunk.file),
                     chunk.begin, fmt::join(chunk.box.offsets, ", "), fmt::join(chunk.box.sizes, ", "));
}

std::string tensor_text(const PlannedTensor& tensor) {
  std::vector<std::string> chunks;
  for (const PlannedChunk& chunk : tensor.chunks) {
    chunks.push_back(chunk_text(chunk));
  }
  return fmt::format(R"({{"dtype": "{}", "shape": [{}], "chunks": [{}]}})", safetensors_dtype_name(tensor.dtype),
                     fmt::join(tensor.shape, ", "), fmt::join(chunks, ", "));
}

// An object with a line for each member.
template <typename Map, typename Text>
std::string object_text(const Map& members, Text text_of) {
  std::vector<std::string> lines;
  for (const auto& [name, value] : members) {
    lines.push_back(fmt::format("\n  {}: {}", json_text(name), text_of(value)));
  }
  return fmt::format("{{{}\n}}", fmt::join(lines, ","));
}

std::string state_text(const std::string& state_json) {
  const std::string origin = "the state of a checkpoint";
  require(parse_strict_json(state_json, origin, 60).is_object(), "{} is not a JSON object", origin);
  return ordered_json::parse(state_json).dump();
}

}  // namespace

std::string chunk_key(const std::string& tensor, const Box& box) {
  return tensor + box.text();
}

std::string plan_text(const CheckpointPlan& plan) {
  std::string text = fmt::format("{{\"format\": \"{}\", \"version\": {}, {}", kPlanFormat, kPlanVersion, kSumField);
  const size_t digits = text.size();
  text +=
      fmt::format("{}\",\n\"step\": {}, \"world_size\": {},\n\"files\": {},\n\"tensors\": {},\n\"state\": {}}}\n",
                  kNoSum, plan.step, plan.world_size,
                  object_text(plan.files,
                              [](const FileSum& file) {
                                return fmt::format(R"({{"bytes": {}, "xxh3_64": "{}"}})", file.bytes, file.checksum);
                              }),
                  object_text(plan.tensors, tensor_text), state_text(plan.state_json));
  return text.replace(digits, kNoSum.size(), checksum_of(text));
}

namespace {

const json& member(const json& object, const char* name, json::value_t type, const std::string& origin) {
  require(object.is_object() && object.contains(name), "{}: '{}' is missing", origin, name);
  const json& value = object[name];
  require(value.type() == type, "{}: '{}' is of the wrong type ({})", origin, name, value.type_name());
  return value;
}

int64_t whole(const json& value, const std::string& origin) {
  require(value.is_number_unsigned() && value.get<uint64_t>() <= uint64_t{std::numeric_limits<int64_t>::max()},
          "{}: {} is not a size", origin, value.dump(-1, ' ', true, json::error_handler_t::replace));
  return value.get<int64_t>();
}

int64_t whole_member(const json& object, const char* name, const std::string& origin) {
  return whole(member(object, name, json::value_t::number_unsigned, origin), origin);
}

std::vector<int64_t> sizes_member(const json& object, const char* name, const std::string& origin) {
  std::vector<int64_t> sizes;
  for (const json& size : member(object, name, json::value_t::array, origin)) {
    sizes.push_back(whole(size, origin));
  }
  return sizes;
}

std::string text_member(const json& object, const char* name, const std::string& origin) {
  return member(object, name, json::value_t::string, origin).get<std::string>();
}

at::ScalarType dtype_named(const std::string& name, const std::string& origin) {
  using enum at::ScalarType;
  constexpr std::array kAll = {Bool,     Byte, Char,   Float8_e5m2, Float8_e4m3fn, Float8_e8m0fnu, Short, UInt16, Half,
                               BFloat16, Int,  UInt32, Float,       ComplexFloat,  Double,         Long,  UInt64};
  for (const at::ScalarType dtype : kAll) {
    if (name == safetensors_dtype_name(dtype)) {
      return dtype;
    }
  }
  fail("{}: dtype '{}' is not known", origin, name);
}

// Format and version first: what a later version says is not to be judged by this one.
void check_heading(const json& root, const std::string& text, const std::string& origin) {
  const auto format = root.is_object() ? root.find("format") : root.end();
  require(root.is_object() && format != root.end() && *format == kPlanFormat, "{}: not the plan of a Tetra checkpoint",
          origin);
  const int64_t version = whole_member(root, "version", origin);
  require(version == kPlanVersion, "{}: format version {}; this program reads version {}", origin, version,
          kPlanVersion);
  const std::string sum = text_member(root, "xxh3_64", origin);
  const size_t field = text.find(kSumField);
  require(field < text.find('\n') && sum.size() == kNoSum.size(), "{}: corrupt: its checksum is not where it belongs",
          origin);
  std::string summed = text;
  summed.replace(field + kSumField.size(), kNoSum.size(), kNoSum);
  require(checksum_of(summed) == sum, "{}: corrupt: its text has checksum {}, {} was written", origin,
          checksum_of(summed), sum);
}

// Paths lie within the folder: NAME or objects/NAME.
void check_path(const std::string& path, const std::string& origin) {
  const std::string name = path.starts_with("objects/") ? path.substr(8) : path;
  require(!name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
              name.find('\0') == std::string::npos,
          "{}: file name '{}' leads out of the folder", origin, path);
}

std::map<std::string, FileSum> parse_files(const json& root, const std::string& origin) {
  std::map<std::string, FileSum> files;
  for (const auto& [path, entry] : member(root, "files", json::value_t::object, origin).items()) {
    check_path(path, origin);
    const std::string place = fmt::format("{}: file '{}'", origin, path);
    files[path] = {static_cast<uint64_t>(whole_member(entry, "bytes", place)), text_member(entry, "xxh3_64", place)};
  }
  return files;
}

PlannedChunk parse_chunk(const json& entry, const PlannedTensor& tensor, const CheckpointPlan& plan,
                         const std::string& origin) {
  PlannedChunk chunk;
  chunk.file = text_member(entry, "file", origin);
  chunk.begin = static_cast<uint64_t>(whole_member(entry, "begin", origin));
  chunk.box = {sizes_member(entry, "offsets", origin), sizes_member(entry, "sizes", origin)};
  require(lies_within(chunk.box, tensor.shape) && chunk.box.numel() > 0,
          "{}: a chunk of sizes {} at {} is not within shape {}", origin, chunk.box.sizes, chunk.box.offsets,
          tensor.shape);
  const auto file = plan.files.find(chunk.file);
  require(file != plan.files.end(), "{}: its file '{}' is not listed", origin, chunk.file);
  uint64_t bytes = 0;
  require(tensor_bytes(tensor.dtype, chunk.box.sizes, bytes) && chunk.begin <= file->second.bytes &&
              bytes <= file->second.bytes - chunk.begin,
          "{}: chunk {} is not within file '{}'", origin, chunk.box.text(), chunk.file);
  return chunk;
}

PlannedTensor parse_tensor(const json& entry, const CheckpointPlan& plan, const std::string& origin) {
  PlannedTensor tensor;
  tensor.dtype = dtype_named(text_member(entry, "dtype", origin), origin);
  tensor.shape = sizes_member(entry, "shape", origin);
  uint64_t bytes = 0;
  require(tensor_bytes(tensor.dtype, tensor.shape, bytes), "{}: shape {} is not possible", origin, tensor.shape);
  for (const json& chunk : member(entry, "chunks", json::value_t::array, origin)) {
    tensor.chunks.push_back(parse_chunk(chunk, tensor, plan, origin));
  }
  return tensor;
}

}  // namespace

CheckpointPlan parse_plan(const std::string& text, const std::string& origin) {
  const json root = parse_strict_json(text, origin, 64);
  check_heading(root, text, origin);
  CheckpointPlan plan;
  plan.step = whole_member(root, "step", origin);
  plan.world_size = whole_member(root, "world_size", origin);
  plan.files = parse_files(root, origin);
  for (const auto& [name, entry] : member(root, "tensors", json::value_t::object, origin).items()) {
    plan.tensors[name] = parse_tensor(entry, plan, fmt::format("{}: tensor '{}'", origin, name));
  }
  member(root, "state", json::value_t::object, origin);
  plan.state_json = ordered_json::parse(text)["state"].dump();  // its keys in the order they were written
  return plan;
}

void merge_plan(CheckpointPlan& plan, CheckpointPlan&& other) {
  for (auto& [path, file] : other.files) {
    require(plan.files.emplace(path, file).second, "two ranks write the file '{}' of a checkpoint", path);
  }
  for (auto& [name, tensor] : other.tensors) {
    const auto [found, added] = plan.tensors.try_emplace(name, tensor);
    PlannedTensor& mine = found->second;
    require(mine.dtype == tensor.dtype && mine.shape == tensor.shape,
            "tensor '{}' is {} {} on one rank and {} {} on another", name, c10::toString(mine.dtype), mine.shape,
            c10::toString(tensor.dtype), tensor.shape);
    if (!added) {
      mine.chunks.insert(mine.chunks.end(), tensor.chunks.begin(), tensor.chunks.end());
    }
  }
}

namespace {

// Sorted by their start in dim 0, a chunk is compared with those alone that start before it ends.
void check_disjoint(const std::string& name, const PlannedTensor& tensor, const std::string& origin) {
  std::vector<const PlannedChunk*> order;
  for (const PlannedChunk& chunk : tensor.chunks) {
    order.push_back(&chunk);
  }
  std::sort(order.begin(), order.end(), [](const auto* a, const auto* b) { return a->box.offsets < b->box.offsets; });
  for (size_t i = 0; i < order.size(); ++i) {
    const Box& box = order[i]->box;
    for (size_t j = i + 1; j < order.size(); ++j) {
      const Box& next = order[j]->box;
      if (!box.sizes.empty() && next.offsets[0] >= box.offsets[0] + box.sizes[0]) {
        break;
      }
      require(!intersect(box, next), "{}: tensor '{}': chunks {} of {} and {} of {} overlap", origin, name, box.text(),
              order[i]->file, next.text(), order[j]->file);
    }
  }
}

}  // namespace

void check_tiling(const CheckpointPlan& plan, const std::string& origin) {
  for (const auto& [name, tensor] : plan.tensors) {
    check_disjoint(name, tensor, origin);
    int64_t held = 0;
    for (const PlannedChunk& chunk : tensor.chunks) {
      held += chunk.box.numel();
    }
    const int64_t all = Box{std::vector<int64_t>(tensor.shape.size(), 0), tensor.shape}.numel();
    require(held == all, "{}: tensor '{}' of shape {}: {} of {} elements are there", origin, name, tensor.shape, held,
            all);
  }
}

}  // namespace tetra
