// Python's door to the host's stack: shapes are checked here, everything behind is raw pointers.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "dispatch.hpp"
#include "stack.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace duckfleet::host {
namespace {

using kernels::PackedMatrix;
using In1 = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using In2 = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Out2 = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Keys = nb::ndarray<float, nb::ndim<4>, nb::c_contig, nb::device::cpu>;
using Values = nb::ndarray<float, nb::ndim<3>, nb::c_contig, nb::device::cpu>;

[[noreturn]] void refuse(const std::string& what) { throw nb::value_error(what.c_str()); }

const kernels::Kernels& selected(const std::optional<std::string>& impl) {
  const kernels::Selected choice = kernels::select(impl.value_or(""));
  if (!choice.kernels) refuse(choice.error);
  return *choice.kernels;
}

struct PyCache {
  SequenceCache cache;
  std::vector<std::tuple<Keys, Values>> kept;
};

class PyStack {
 public:
  PyStack(std::uint32_t hidden, float eps, std::uint32_t threads, const std::optional<std::string>& impl)
      : stack_(hidden, eps, selected(impl), threads) {
    if (hidden == 0 || threads == 0 || threads > 1024) refuse("hidden and threads must be positive");
  }

  void add_layer(In1 input_norm, In1 ffn_norm, const std::vector<nb::object>& qkv, std::optional<In1> qkv_bias,
                 nb::object out, std::optional<In1> out_bias, std::optional<In1> q_norm, std::optional<In1> k_norm,
                 std::uint32_t num_heads, std::uint32_t num_kv_heads, std::uint32_t head_dim, std::uint32_t rope,
                 std::uint32_t rope_dim) {
    if (num_kv_heads == 0 || head_dim == 0 || num_heads % num_kv_heads != 0) refuse("heads do not share keys evenly");
    if (rope_dim % 2 != 0 || rope_dim > head_dim) refuse("rope_dim must be even and at most head_dim");
    if (qkv.size() != 3) refuse("qkv must be three matrices");
    LayerWeights layer;
    layer.num_heads = num_heads;
    layer.num_kv_heads = num_kv_heads;
    layer.head_dim = head_dim;
    layer.rope = rope;
    layer.rope_dim = rope_dim;
    layer.input_norm = vector(input_norm, stack_.hidden(), "input_norm");
    layer.ffn_norm = vector(ffn_norm, stack_.hidden(), "ffn_norm");
    const std::uint32_t rows[3] = {num_heads * head_dim, num_kv_heads * head_dim, num_kv_heads * head_dim};
    for (std::size_t i = 0; i < 3; ++i) layer.qkv[i] = matrix(qkv[i], rows[i], stack_.hidden(), "qkv");
    layer.qkv_bias = optional(qkv_bias, rows[0] + rows[1] + rows[2], "qkv_bias");
    layer.out = matrix(out, stack_.hidden(), rows[0], "out");
    layer.out_bias = optional(out_bias, stack_.hidden(), "out_bias");
    layer.q_norm = optional(q_norm, head_dim, "q_norm");
    layer.k_norm = optional(k_norm, head_dim, "k_norm");
    stack_.add_layer(layer);
  }

  void set_rope(std::uint32_t index, In2 cos, In2 sin) {
    if (index > stack_.num_ropes() || cos.shape(0) != sin.shape(0) || cos.shape(1) != sin.shape(1))
      refuse("cos and sin must be [positions, dim / 2] of the next or an earlier table");
    if (tables_.size() <= index) tables_.resize(index + 1);
    tables_[index] = {cos, sin};
    stack_.set_rope(index, {cos.data(), sin.data(), static_cast<std::uint32_t>(cos.shape(0))});
  }

  void set_head(In1 norm, nb::object head) {
    const auto& packed = nb::cast<const PackedMatrix&>(head);
    if (packed.shape().num_cols != stack_.hidden()) refuse("the head's columns must be hidden");
    kept_.push_back(head);
    stack_.set_head(vector(norm, stack_.hidden(), "norm"), &packed);
    has_head_ = true;
  }

  void begin(In2 x, const std::vector<std::tuple<const PyCache*, std::uint32_t, std::uint32_t>>& sequences) {
    if (!has_head_ || x.shape(1) != stack_.hidden() || x.shape(0) == 0 || x.shape(0) > Crew::kMaxUnits)
      refuse("x must be [num_tokens, hidden], after set_head()");
    segments_.clear();
    std::uint32_t row0 = 0;
    for (const auto& [cache, start, num_tokens] : sequences) {
      if (!cache || cache->cache.keys.size() < stack_.num_layers()) refuse("a cache of fewer layers");
      if (num_tokens == 0 || start > cache->cache.max_len || num_tokens > cache->cache.max_len - start)
        refuse("tokens beyond the cache");
      for (std::uint32_t i = 0; i < stack_.num_layers(); ++i) check_cache(*cache, i, start + num_tokens);
      segments_.push_back({&cache->cache, row0, num_tokens, start});
      row0 += num_tokens;
    }
    if (row0 != x.shape(0)) refuse("the sequences' tokens are not those of x");
    const nb::gil_scoped_release unlocked;
    stack_.begin(x.data(), row0, segments_);
  }

  void attention(std::uint32_t layer, std::optional<In2> last_ffn, Out2 ffn_in) {
    if (layer >= stack_.num_layers()) refuse("no such layer");
    if (last_ffn.has_value() != (layer > 0)) refuse("every layer but the first takes the last FFN's result");
    check_rows(last_ffn ? last_ffn->shape(0) : ffn_in.shape(0), last_ffn ? last_ffn->shape(1) : ffn_in.shape(1));
    check_rows(ffn_in.shape(0), ffn_in.shape(1));
    const nb::gil_scoped_release unlocked;
    stack_.attention(layer, last_ffn ? last_ffn->data() : nullptr, ffn_in.data());
  }

  void logits(In2 last_ffn, const std::vector<std::uint32_t>& rows, Out2 out) {
    check_rows(last_ffn.shape(0), last_ffn.shape(1));
    if (out.shape(0) != rows.size() || out.shape(1) != stack_.vocab_size()) refuse("out must be [rows, vocab]");
    if (rows.size() > stack_.num_tokens()) refuse("more rows than tokens");
    for (const std::uint32_t row : rows)
      if (row >= stack_.num_tokens()) refuse("no such row");
    const nb::gil_scoped_release unlocked;
    stack_.logits(last_ffn.data(), rows, out.data());
  }

 private:
  const float* vector(In1 values, std::size_t size, const char* what) {
    if (values.shape(0) != size) refuse(std::string(what) + " must have " + std::to_string(size) + " values");
    vectors_.push_back(values);
    return values.data();
  }
  const float* optional(const std::optional<In1>& values, std::size_t size, const char* what) {
    return values ? vector(*values, size, what) : nullptr;
  }
  const PackedMatrix* matrix(const nb::object& held, std::uint32_t rows, std::uint32_t cols, const char* what) {
    const auto& packed = nb::cast<const PackedMatrix&>(held);
    if (packed.shape().num_rows != rows || packed.shape().num_cols != cols)
      refuse(std::string(what) + " must be [" + std::to_string(rows) + ", " + std::to_string(cols) + "]");
    kept_.push_back(held);
    return &packed;
  }
  void check_rows(std::size_t rows, std::size_t cols) const {
    if (rows != stack_.num_tokens() || cols != stack_.hidden()) refuse("FFN inputs and results are [num_tokens, hidden]");
  }
  void check_cache(const PyCache& cache, std::uint32_t index, std::uint32_t stop) const {
    const LayerWeights& layer = stack_.layer(index);
    const auto& [keys, values] = cache.kept[index];
    if (keys.shape(0) != layer.num_kv_heads || keys.shape(2) != layer.head_dim || values.shape(0) != layer.num_kv_heads ||
        values.shape(2) != padded(layer.head_dim))
      refuse("the cache is not one of this model");
    if (layer.rope >= stack_.num_ropes() || stack_.rope(layer.rope).num_positions < stop) refuse("no rope table so long");
  }

  Stack stack_;
  bool has_head_ = false;
  std::vector<Segment> segments_;
  std::vector<std::tuple<In2, In2>> tables_;
  std::vector<In1> vectors_;
  std::vector<nb::object> kept_;
};

}  // namespace
}  // namespace duckfleet::host

NB_MODULE(_host, m) {
  using namespace duckfleet::host;
  m.doc() = "The host's side of a decoder, natively; use duckfleet.runtime.decoder.";
  m.attr("LANES") = kLanes;

  nb::class_<PyCache>(m, "Cache")
      .def("__init__",
           [](PyCache* self, std::uint32_t max_len, std::vector<std::tuple<Keys, Values>> layers) {
             for (const auto& [keys, values] : layers) {
               if (keys.shape(1) != (max_len + kLanes - 1) / kLanes || keys.shape(3) != kLanes || values.shape(1) != max_len)
                 refuse("keys must be [kv_heads, panels, head_dim, 16], values [kv_heads, max_len, width]");
             }
             new (self) PyCache{{}, std::move(layers)};
             self->cache.max_len = max_len;
             for (const auto& [keys, values] : self->kept) {
               self->cache.keys.push_back(keys.data());
               self->cache.values.push_back(values.data());
             }
           },
           "max_len"_a, "layers"_a);

  nb::class_<PyStack>(m, "Stack")
      .def(nb::init<std::uint32_t, float, std::uint32_t, const std::optional<std::string>&>(), "hidden"_a, "eps"_a,
           "threads"_a, "impl"_a.none() = nb::none())
      .def("add_layer", &PyStack::add_layer, nb::kw_only(), "input_norm"_a, "ffn_norm"_a, "qkv"_a, "qkv_bias"_a.none(),
           "out"_a, "out_bias"_a.none(), "q_norm"_a.none(), "k_norm"_a.none(), "num_heads"_a, "num_kv_heads"_a,
           "head_dim"_a, "rope"_a, "rope_dim"_a)
      .def("set_rope", &PyStack::set_rope, "index"_a, "cos"_a, "sin"_a)
      .def("set_head", &PyStack::set_head, "norm"_a, "head"_a)
      .def("begin", &PyStack::begin, "x"_a.noconvert(), "sequences"_a)
      .def("attention", &PyStack::attention, "layer"_a, "last_ffn"_a.noconvert().none(), "ffn_in"_a.noconvert())
      .def("logits", &PyStack::logits, "last_ffn"_a.noconvert(), "rows"_a, "out"_a.noconvert());
}
