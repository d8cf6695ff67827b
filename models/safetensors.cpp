#include "models/safetensors.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <string_view>

#include <ATen/ops/empty.h>

#include "kernels/error.h"
#include "models/safetensors_convert.h"
#include "models/safetensors_format.h"
#include "models/safetensors_map.h"
#include "models/strict_json.h"

namespace tetra {
namespace fs = std::filesystem;

// A file and its place in memory; entries point into it.
struct MappedEntry {
  SafetensorsEntry entry;
  const char* data = nullptr;
};

struct WeightReader::State {
  std::vector<MappedFile> files;
  std::map<std::string, MappedEntry> entries;
  std::map<std::string, TensorInfo> tensors;

  /// Maps and checks one file, and adds its tensors. Returns their names.
  std::set<std::string> add_file(const std::string& path);
  void add_index(const std::string& path);
};

std::set<std::string> WeightReader::State::add_file(const std::string& path) {
  files.emplace_back(path);
  const MappedFile& file = files.back();
  const SafetensorsHeader header = parse_safetensors_header(file.data(), file.size(), path);
  std::set<std::string> names;
  for (const auto& [name, entry] : header.tensors) {
    require(!entries.contains(name), "tensor '{}' is in both {} and {}", name, tensors[name].file, path);
    entries[name] = {entry, file.data() + header.data_begin + entry.begin};
    tensors[name] = {entry.dtype, entry.shape, path};
    names.insert(name);
  }
  return names;
}

namespace {

/// File names in an index lie below its folder: no absolute path, no "..".
void check_shard_name(const std::string& name, const std::string& index) {
  const fs::path path(name);
  bool inside = !name.empty() && path.is_relative() && name.find('\0') == std::string::npos;
  for (const auto& part : path) {
    inside = inside && part != "..";
  }
  require(inside, "{}: file name '{}' leads out of the folder", index, name);
}

/// File name -> the names of the tensors that the index puts there.
std::map<std::string, std::set<std::string>> read_index(const std::string& path) {
  const MappedFile file(path);
  const auto root = parse_strict_json(std::string_view(file.data(), file.size()), path, 8);
  const auto map = root.is_object() ? root.find("weight_map") : root.end();
  require(root.is_object() && map != root.end() && map->is_object(), "{}: 'weight_map' is missing or not an object",
          path);
  std::map<std::string, std::set<std::string>> shards;
  for (const auto& [name, shard] : map->items()) {
    require(shard.is_string(), "{}: weight_map: '{}' is not given a file name", path, name);
    const auto file_name = shard.get<std::string>();
    check_shard_name(file_name, path);
    shards[file_name].insert(name);
  }
  return shards;
}

bool ends_with(const std::string& text, std::string_view end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

}  // namespace

void WeightReader::State::add_index(const std::string& path) {
  const fs::path folder = fs::path(path).parent_path();
  for (const auto& [file_name, expected] : read_index(path)) {
    const std::string shard = (folder / file_name).string();
    require(fs::exists(shard), "{}: file '{}' is missing in {}", path, file_name, folder.string());
    const auto found = add_file(shard);
    for (const auto& name : expected) {
      require(found.contains(name), "{}: tensor '{}' is not in {}", path, name, shard);
    }
    for (const auto& name : found) {
      require(expected.contains(name), "{}: tensor '{}' of {} is not in the index under that file", path, name, shard);
    }
  }
}

WeightReader WeightReader::open(const std::string& folder_or_file) {
  auto state = std::make_unique<State>();
  const fs::path path(folder_or_file);
  if (!fs::is_directory(path)) {
    if (ends_with(folder_or_file, ".json")) {
      state->add_index(folder_or_file);
    } else {
      state->add_file(folder_or_file);
    }
    return WeightReader(std::move(state));
  }
  if (fs::exists(path / kSingleWeightFile)) {
    state->add_file((path / kSingleWeightFile).string());
  } else {
    require(fs::exists(path / kWeightIndexFile), "{} holds neither {} nor {}", folder_or_file, kSingleWeightFile,
            kWeightIndexFile);
    state->add_index((path / kWeightIndexFile).string());
  }
  return WeightReader(std::move(state));
}

WeightReader::WeightReader(std::unique_ptr<State> state) : state_(std::move(state)) {}
WeightReader::WeightReader(WeightReader&&) noexcept = default;
WeightReader& WeightReader::operator=(WeightReader&&) noexcept = default;
WeightReader::~WeightReader() = default;

const std::map<std::string, TensorInfo>& WeightReader::tensors() const {
  return state_->tensors;
}
bool WeightReader::contains(const std::string& name) const {
  return state_->tensors.contains(name);
}

namespace {

void check_slice(const Slice& slice, const std::string& name) {
  const auto rank = static_cast<int64_t>(slice.global_shape.size());
  if (rank == 0) {
    return;
  }
  require(slice.dim >= 0 && slice.dim < rank, "tensor '{}': slice along dim {} of shape {}", name, slice.dim,
          slice.global_shape);
  const int64_t size = slice.global_shape[static_cast<size_t>(slice.dim)];
  for (const auto& range : slice.ranges) {
    require(range.begin >= 0 && range.begin <= range.end && range.end <= size,
            "tensor '{}': slice [{}, {}) along dim {} of shape {}", name, range.begin, range.end, slice.dim,
            slice.global_shape);
  }
}

int64_t product(const std::vector<int64_t>& shape, size_t begin, size_t end) {
  int64_t result = 1;
  for (size_t i = begin; i < end; ++i) {
    result *= shape[i];
  }
  return result;
}

/// Copies elements [flat.begin, flat.end) of the slice run by run: a run is contiguous in the file and in the target.
void copy_slice(const MappedEntry& source, const Slice& slice, Range flat, CopyRun copy, at::Tensor& target) {
  const auto& shape = slice.global_shape;
  if (shape.empty()) {
    copy(source.data, target.mutable_data_ptr(), 1);
    return;
  }
  const auto dim = static_cast<size_t>(slice.dim);
  const int64_t inner = product(shape, dim + 1, shape.size());
  const int64_t row_numel = slice.local_shape()[dim] * inner;
  const int64_t item = static_cast<int64_t>(c10::elementSize(source.entry.dtype));
  char* out = static_cast<char*>(target.mutable_data_ptr());
  for (int64_t row = flat.begin / row_numel; row * row_numel < flat.end; ++row) {
    int64_t begin = row * row_numel;  // of the range in the local tensor
    for (const auto& range : slice.ranges) {
      const Range part = intersect(flat, {begin, begin + range.size() * inner});
      if (part.size() > 0) {
        const int64_t first = (row * shape[dim] + range.begin) * inner + part.begin - begin;
        copy(source.data + first * item, out, part.size());
        out += part.size() * target.element_size();
      }
      begin += range.size() * inner;
    }
  }
}

}  // namespace

at::Tensor WeightReader::read(const std::string& name, const Slice& slice, at::ScalarType dtype) const {
  check_slice(slice, name);
  return read(name, slice, {0, slice.local_numel()}, dtype).view(slice.local_shape());
}

at::Tensor WeightReader::read(const std::string& name, const Slice& slice, Range flat, at::ScalarType dtype) const {
  const auto found = state_->entries.find(name);
  require(found != state_->entries.end(), "tensor '{}' is missing; the files hold {} other tensors", name,
          state_->entries.size());
  const TensorInfo& info = state_->tensors.at(name);
  require(info.shape == slice.global_shape, "tensor '{}' has shape {} in {}, but the model needs {}", name, info.shape,
          info.file, slice.global_shape);
  check_slice(slice, name);
  const CopyRun copy = copy_run_for(info.dtype, dtype);
  require(copy != nullptr, "tensor '{}' of {} is stored as {}, which does not convert to {}", name, info.file,
          safetensors_dtype_name(info.dtype), c10::toString(dtype));
  require(flat.begin >= 0 && flat.begin <= flat.end && flat.end <= slice.local_numel(),
          "tensor '{}': elements [{}, {}) of a part that has {}", name, flat.begin, flat.end, slice.local_numel());
  at::Tensor result = at::empty({flat.size()}, at::TensorOptions().dtype(dtype));
  if (result.numel() > 0) {
    copy_slice(found->second, slice, flat, copy, result);
  }
  return result;
}

}  // namespace tetra
