#include <algorithm>
#include <filesystem>
#include <set>

#include <nlohmann/json.hpp>

#include "kernels/error.h"
#include "models/safetensors.h"
#include "models/safetensors_format.h"
#include "models/safetensors_output.h"

namespace tetra {

struct SafetensorsWriter::State {
  std::string path;
  SafetensorsLayout layout;
  AtomicFile file;
  // Byte ranges of the data section that are written: begin -> end.
  std::map<std::string, std::map<uint64_t, uint64_t>> written;
  bool finished = false;

  State(std::string file_path, const TensorShapes& tensors)
      : path(std::move(file_path)), layout(layout_safetensors(tensors, path)), file(path, layout.file_size) {}

  const SafetensorsEntry& declared(const std::string& name) const;
  void put(const std::string& name, const at::Tensor& tensor, uint64_t offset);
};

const SafetensorsEntry& SafetensorsWriter::State::declared(const std::string& name) const {
  const auto found = layout.tensors.find(name);
  require(found != layout.tensors.end(), "{}: tensor '{}' was not declared", path, name);
  return found->second;
}

/// Writes the bytes of `tensor` at `offset` within the tensor `name`.
void SafetensorsWriter::State::put(const std::string& name, const at::Tensor& tensor, uint64_t offset) {
  const SafetensorsEntry& entry = declared(name);
  require(tensor.device().is_cpu() && tensor.is_contiguous(), "{}: tensor '{}' is not a contiguous CPU tensor", path,
          name);
  require(tensor.scalar_type() == entry.dtype, "{}: tensor '{}' is {}, but was declared as {}", path, name,
          c10::toString(tensor.scalar_type()), c10::toString(entry.dtype));
  const uint64_t begin = entry.begin + offset;
  const uint64_t end = begin + tensor.nbytes();
  if (begin == end) {
    return;
  }
  auto& ranges = written[name];
  const auto next = ranges.lower_bound(begin);
  const bool free =
      (next == ranges.end() || next->first >= end) && (next == ranges.begin() || std::prev(next)->second <= begin);
  require(free, "{}: tensor '{}' was written already", path, name);
  file.write_at(layout.header.size() + begin, tensor.const_data_ptr(), end - begin);
  ranges[begin] = end;
}

SafetensorsWriter::SafetensorsWriter(std::string path, TensorShapes tensors)
    : state_(std::make_unique<State>(std::move(path), tensors)) {
  state_->file.write_at(0, state_->layout.header.data(), state_->layout.header.size());
}

SafetensorsWriter::~SafetensorsWriter() = default;

void SafetensorsWriter::write(const std::string& name, const at::Tensor& tensor) {
  const auto& shape = state_->declared(name).shape;
  require(tensor.sizes() == at::IntArrayRef(shape), "{}: tensor '{}' has shape {}, but was declared as {}",
          state_->path, name, tensor.sizes().vec(), shape);
  state_->put(name, tensor, 0);
}

void SafetensorsWriter::write_rows(const std::string& name, const at::Tensor& tensor, int64_t first_row) {
  const auto& shape = state_->declared(name).shape;
  auto expected = tensor.sizes().vec();
  require(!shape.empty() && !expected.empty() && first_row >= 0 && expected[0] <= shape[0] - first_row,
          "{}: tensor '{}': rows from {} of shape {} do not fit in {}", state_->path, name, first_row, expected, shape);
  const auto rows = static_cast<uint64_t>(expected[0]);
  expected[0] = shape[0];
  require(expected == shape, "{}: tensor '{}': rows of shape {} do not fit in {}", state_->path, name,
          tensor.sizes().vec(), shape);
  state_->put(name, tensor, rows == 0 ? 0 : tensor.nbytes() / rows * static_cast<uint64_t>(first_row));
}

void SafetensorsWriter::finish() {
  require(!state_->finished, "{}: finish() was called already", state_->path);
  for (const auto& [name, entry] : state_->layout.tensors) {
    uint64_t bytes = 0;
    for (const auto& [begin, end] : state_->written[name]) {
      bytes += end - begin;
    }
    require(bytes == entry.end - entry.begin, "{}: tensor '{}': {} of {} bytes were written", state_->path, name, bytes,
            entry.end - entry.begin);
  }
  state_->file.commit();
  state_->finished = true;
}

namespace {

std::string shard_name(size_t index, size_t count) {
  return count == 1 ? kSingleWeightFile : fmt::format("model-{:05}-of-{:05}.safetensors", index + 1, count);
}

int64_t numel(const std::vector<int64_t>& shape) {
  int64_t result = 1;
  for (const int64_t size : shape) {
    result *= size;
  }
  return result;
}

std::string index_text(const ShardPlan& plan, uint64_t total_bytes, int64_t total_parameters) {
  nlohmann::json index;
  index["metadata"] = {{"total_size", total_bytes}, {"total_parameters", total_parameters}};
  auto& map = index["weight_map"] = nlohmann::json::object();
  for (const auto& [file, names] : plan.files) {
    for (const auto& name : names) {
      map[name] = file;
    }
  }
  return index.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace

ShardPlan plan_shards(
    const std::vector<std::pair<std::string, std::pair<at::ScalarType, std::vector<int64_t>>>>& tensors,
    int64_t max_shard_bytes) {
  require(max_shard_bytes > 0, "max_shard_bytes is {}; it must be positive", max_shard_bytes);
  const auto limit = static_cast<uint64_t>(max_shard_bytes);
  std::vector<std::vector<std::string>> shards;
  std::vector<std::string> open;
  uint64_t open_bytes = 0;
  uint64_t total_bytes = 0;
  int64_t total_parameters = 0;
  std::set<std::string> seen;
  for (const auto& [name, declared] : tensors) {
    require(seen.insert(name).second, "tensor '{}' is listed twice", name);
    uint64_t bytes = 0;
    require(tensor_bytes(declared.first, declared.second, bytes), "tensor '{}': shape {} is not possible", name,
            declared.second);
    total_bytes += bytes;
    total_parameters += numel(declared.second);
    if (bytes > limit) {  // alone in a file; the open one goes on after it
      shards.push_back({name});
      continue;
    }
    if (!open.empty() && open_bytes + bytes > limit) {
      shards.push_back(std::move(open));
      open.clear();
      open_bytes = 0;
    }
    open.push_back(name);
    open_bytes += bytes;
  }
  if (!open.empty() || shards.empty()) {
    shards.push_back(std::move(open));
  }
  ShardPlan plan;
  for (size_t i = 0; i < shards.size(); ++i) {
    plan.files.emplace_back(shard_name(i, shards.size()), std::move(shards[i]));
  }
  if (plan.files.size() > 1) {
    plan.index_json = index_text(plan, total_bytes, total_parameters);
  }
  return plan;
}

namespace {

bool all_digits(const std::string& text) {
  return text.find_first_not_of("0123456789") == std::string::npos;
}

/// model.safetensors, its index, or model-00001-of-00003.safetensors.
bool is_weight_file(const std::string& name) {
  if (name == kSingleWeightFile || name == kWeightIndexFile) {
    return true;
  }
  constexpr size_t kLength = sizeof("model-00001-of-00003.safetensors") - 1;
  return name.size() == kLength && name.starts_with("model-") && name.substr(11, 4) == "-of-" &&
         name.ends_with(".safetensors") && all_digits(name.substr(6, 5)) && all_digits(name.substr(15, 5));
}

}  // namespace

void remove_stale_weight_files(const std::string& folder, const ShardPlan& plan) {
  std::set<std::string> keep;
  for (const auto& [file, unused] : plan.files) {
    keep.insert(file);
  }
  if (!plan.index_json.empty()) {
    keep.insert(kWeightIndexFile);
  }
  std::error_code error;
  std::vector<std::filesystem::path> stale;
  for (const auto& item : std::filesystem::directory_iterator(folder, error)) {
    const auto name = item.path().filename().string();
    if (is_weight_file(name) && !keep.contains(name)) {
      stale.push_back(item.path());
    }
  }
  require(!error, "cannot list {}: {}", folder, error.message());
  for (const auto& path : stale) {
    std::filesystem::remove(path, error);
    require(!error, "cannot remove {}: {}", path.string(), error.message());
  }
}

}  // namespace tetra
