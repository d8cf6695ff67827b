#include "parallel/data/state_parts.h"

#include <string>
#include <utility>

#include "mesh/group.h"
#include "parallel/data/state_shards.h"

namespace tetra {
namespace {

// The part of a box that no lower tp rank holds too, as boxes; `owned` are ranges of the local tensor along `dim`.
std::vector<SliceBox> owned_parts(const SliceBox& box, size_t dim, const std::vector<Range>& owned) {
  if (box.sizes.empty()) {  // a scalar
    return owned.empty() || owned.front().size() == 0 ? std::vector<SliceBox>() : std::vector<SliceBox>{box};
  }
  std::vector<SliceBox> parts;
  for (const Range& range : owned) {
    const Range part = intersect(range, {box.local[dim], box.local[dim] + box.sizes[dim]});
    if (part.size() > 0) {
      SliceBox& piece = parts.emplace_back(box);
      piece.global[dim] += part.begin - box.local[dim];
      piece.local[dim] = part.begin;
      piece.sizes[dim] = part.size();
    }
  }
  return parts;
}

// The box within `shard`, where the segment begins at segment.offset.
at::Tensor view_of(const at::Tensor& shard, const Segment& segment, const SliceBox& box) {
  const std::vector<int64_t> shape = segment.parameter->slice.local_shape();
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t d = shape.size(); d-- > 1;) {
    strides[d - 1] = strides[d] * shape[d];
  }
  int64_t first = 0;
  for (size_t d = 0; d < shape.size(); ++d) {
    first += box.local[d] * strides[d];
  }
  return shard.as_strided(box.sizes, strides, shard.storage_offset() + segment.offset + first - segment.flat.begin);
}

class Collector {
 public:
  Collector(ModelState& state, bool saving) : state_(state), saving_(saving) {}

  void add(const std::string& kind, size_t unit, const at::Tensor& shard) {
    for (const Segment& segment : state_.units()[unit].segments) {
      add_segment(kind, segment, shard);
    }
  }
  std::vector<StatePart> take() { return std::move(parts_); }

 private:
  void add_segment(const std::string& kind, const Segment& segment, const at::Tensor& shard) {
    const Parameter& parameter = *segment.parameter;
    Range flat = segment.flat;
    if (saving_) {
      const Group& replicas = *state_.groups().replicate;
      const Range share = even_range(flat.size(), replicas.size(), replicas.rank());
      flat = {flat.begin + share.begin, flat.begin + share.end};
    }
    const auto owned = parameter.cut.owned_local(state_.parameters().tp_rank());
    for (const SliceBox& box : boxes_of(parameter.slice, flat)) {
      const auto kept =
          saving_ ? owned_parts(box, static_cast<size_t>(parameter.cut.dim()), owned) : std::vector<SliceBox>{box};
      for (const SliceBox& part : kept) {
        parts_.push_back(
            {kind + "/" + parameter.name, parameter.cut.global_shape(), part.global, view_of(shard, segment, part)});
      }
    }
  }

  ModelState& state_;
  bool saving_;
  std::vector<StatePart> parts_;
};

std::vector<StatePart> all_parts(ModelState& state, Optimizer* optimizer, bool saving) {
  Collector collector(state, saving);
  for_each_shard(state, optimizer, [&](const std::string& kind, size_t unit, const at::Tensor& shard) {
    collector.add(kind, unit, shard);
  });
  return collector.take();
}

}  // namespace

std::vector<StatePart> parts_to_save(ModelState& state, Optimizer& optimizer) {
  return all_parts(state, &optimizer, true);
}

std::vector<StatePart> parts_to_load(ModelState& state, Optimizer& optimizer) {
  return all_parts(state, &optimizer, false);
}

std::vector<StatePart> weights_to_load(ModelState& state) {
  return all_parts(state, nullptr, false);
}

}  // namespace tetra
