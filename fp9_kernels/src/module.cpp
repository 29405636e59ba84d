// The Python module duckfleet.fp9_kernels._kernels. Shapes, dtypes and contiguity are checked here; behind it are raw
// pointers. Arrays that a function fills are allocated by the Python side.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <mutex>

#include "bench.hpp"
#include "chunk.hpp"
#include "dispatch.hpp"
#include "ffn.hpp"
#include "matrix.hpp"
#include "tuning.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace duckfleet::kernels;

namespace {

template <typename T>
using In1 = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <typename T>
using In2 = nb::ndarray<const T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
template <typename T>
using Out2 = nb::ndarray<T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

constexpr std::uint32_t kMaxThreads = 256;

const Kernels& selected(const std::optional<std::string>& name) {
  const Selected choice = select(name.value_or(""));
  if (choice.kernels == nullptr) throw nb::value_error(choice.error.c_str());
  return *choice.kernels;
}

Format format_of(const std::string& name) {
  const std::optional<Format> format = format_by_name(name);
  if (!format) throw nb::value_error(("format \"" + name + "\" is unknown; there are f32, bf16, e4m3, fp9").c_str());
  return *format;
}

std::uint32_t bounded(std::uint64_t value, std::uint64_t limit, const char* what) {
  if (value > limit)
    throw nb::value_error((std::string(what) + " " + std::to_string(value) + " is over " + std::to_string(limit)).c_str());
  return static_cast<std::uint32_t>(value);
}

// A team with the lock that its one-call-at-a-time rule asks for.
struct SharedTeam {
  explicit SharedTeam(std::uint32_t threads) : team(threads) {}
  std::mutex busy;
  Team team;
  MatrixWorkspace workspace;
};

// Teams of the process by size, made at first use and kept.
SharedTeam& shared_team(std::uint32_t threads) {
  static std::mutex lock;
  static std::map<std::uint32_t, SharedTeam*> teams;  // not destroyed: threads may not outlive main's statics
  const std::lock_guard guard(lock);
  SharedTeam*& team = teams[threads];
  if (team == nullptr) team = new SharedTeam(threads);
  return *team;
}

std::uint32_t checked_threads(std::int64_t threads) {
  if (threads < 1 || threads > kMaxThreads) throw nb::value_error("threads must be 1 to 256");
  return static_cast<std::uint32_t>(threads);
}

// ---- rounding -----------------------------------------------------------------------------------------------------

std::optional<std::tuple<std::uint64_t, std::uint64_t>> quantize(const std::string& format_name, In2<float> w,
                                                                 Out2<std::uint8_t> codes,
                                                                 std::optional<Out2<std::uint8_t>> signs,
                                                                 Out2<float> scales) {
  const Format format = format_of(format_name);
  if (!has_scales(format)) throw nb::value_error("only e4m3 and fp9 have tiles");
  const std::uint64_t rows = w.shape(0), cols = w.shape(1);
  if (codes.shape(0) != rows || codes.shape(1) != cols || scales.shape(0) != (rows + kTile - 1) / kTile ||
      scales.shape(1) != (cols + kTile - 1) / kTile || signs.has_value() != (format == Format::kFp9) ||
      (signs && (signs->shape(0) != rows || signs->shape(1) != cols)))
    throw nb::value_error("shapes of the outputs do not fit");
  std::optional<Position> bad;
  {
    nb::gil_scoped_release release;
    bad = quantize_tiles(format, w.data(), rows, cols, {codes.data(), signs ? signs->data() : nullptr, scales.data()});
  }
  if (!bad) return std::nullopt;
  return std::tuple{bad->row, bad->col};
}

void round_bf16(In2<float> w, Out2<std::uint16_t> out) {
  if (w.size() != out.size()) throw nb::value_error("shapes do not fit");
  nb::gil_scoped_release release;
  for (std::size_t i = 0; i < w.size(); ++i) out.data()[i] = encode_bf16(w.data()[i]);
}

void decode_table(const std::string& format_name, nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu> out) {
  const Format format = format_of(format_name);
  if (!has_scales(format) || out.shape(0) != (format == Format::kE4m3 ? 256u : 512u))
    throw nb::value_error("the table of e4m3 has 256 entries, that of fp9 512");
  for (std::uint32_t code = 0; code < out.shape(0); ++code)
    out.data()[code] = format == Format::kE4m3 ? decode_e4m3(code) : decode_fp9(code);
}

// ---- one matrix -----------------------------------------------------------------------------------------------------

PackedMatrix* pack_matrix(const std::string& format_name, nb::bytes codes, std::optional<nb::bytes> signs,
                          std::optional<nb::bytes> scales, std::uint64_t row0, std::uint64_t num_rows,
                          std::uint64_t col0, std::uint64_t num_cols) {
  const Format format = format_of(format_name);
  constexpr std::uint64_t kLimit = 1u << 28;
  const std::uint32_t r0 = bounded(row0, kLimit, "row"), rows = bounded(num_rows, kLimit, "number of rows");
  const std::uint32_t c0 = bounded(col0, kLimit, "column"), cols = bounded(num_cols, kLimit, "number of columns");
  const std::uint64_t weights = std::uint64_t{rows} * cols;
  const std::uint64_t width = format == Format::kF32 ? 4 : format == Format::kBf16 ? 2 : 1;
  const std::uint64_t num_scales = std::uint64_t{tiles_touched(r0, rows)} * tiles_touched(c0, cols);
  if (codes.size() != weights * width || signs.has_value() != (format == Format::kFp9) ||
      (signs && signs->size() != (weights + 7) / 8) || scales.has_value() != has_scales(format) ||
      (scales && scales->size() != num_scales * sizeof(float)))
    throw nb::value_error("codes, signs or scales have the wrong length");
  const auto bytes_of = [](const std::optional<nb::bytes>& b) {
    return b ? reinterpret_cast<const std::byte*>(b->c_str()) : nullptr;
  };
  const CodeMatrix source{format, reinterpret_cast<const std::byte*>(codes.c_str()), bytes_of(signs)};
  const std::byte* scale_bytes = bytes_of(scales);
  std::optional<Position> bad;
  std::unique_ptr<PackedMatrix> matrix;
  {
    nb::gil_scoped_release release;
    matrix = std::make_unique<PackedMatrix>(source, scale_bytes, r0, rows, c0, cols, bad);
  }
  if (bad)
    throw nb::value_error(("row " + std::to_string(bad->row) + ", column " + std::to_string(bad->col) +
                           ": not a finite " + format_name + " number")
                              .c_str());
  return matrix.release();
}

// Returns the name of the implementation that ran.
const char* gemv(const PackedMatrix& matrix, In2<float> x, Out2<float> y, const std::optional<std::string>& impl,
                 std::int64_t threads) {
  const Kernels& kernels = selected(impl);
  if (x.shape(1) != matrix.shape().num_cols || y.shape(0) != x.shape(0) || y.shape(1) != matrix.shape().num_rows)
    throw nb::value_error("x must be [num_tokens, num_cols] and y [num_tokens, num_rows]");
  const std::uint32_t num_tokens = bounded(x.shape(0), 1u << 20, "number of tokens");
  SharedTeam& shared = shared_team(checked_threads(threads));
  nb::gil_scoped_release release;
  const std::lock_guard guard(shared.busy);
  multiply(kernels, shared.team, matrix, x.data(), num_tokens, y.data(), shared.workspace);
  return kernels.name;
}

void unpack_matrix(const PackedMatrix& matrix, Out2<float> out, const std::optional<std::string>& impl) {
  const Kernels& kernels = selected(impl);
  if (out.shape(0) != matrix.shape().num_rows || out.shape(1) != matrix.shape().num_cols)
    throw nb::value_error("out must be [num_rows, num_cols]");
  nb::gil_scoped_release release;
  unpack(kernels, matrix.view(), matrix.shape(), out.data());
}

// ---- a shard ----------------------------------------------------------------------------------------------------------

class Shard {
 public:
  Shard(const std::optional<std::string>& impl, std::int64_t threads)
      : kernels_(selected(impl)), team_(checked_threads(threads)) {}

  std::string implementation() const { return kernels_.name; }
  std::uint32_t threads() const { return team_.num_threads(); }

  using Key = std::tuple<std::uint32_t, std::uint16_t, std::uint16_t>;

  Key add_chunk(nb::bytes logical) {
    const std::span<const std::byte> in{reinterpret_cast<const std::byte*>(logical.c_str()), logical.size()};
    std::optional<std::string> error;
    Key key;
    {
      nb::gil_scoped_release release;
      error = add(in, key);
    }
    if (error) throw nb::value_error(error->c_str());
    return key;
  }

  void ffn(std::uint32_t layer, std::uint16_t slice, std::uint16_t part, In2<float> x,
           std::optional<In2<std::uint32_t>> experts, std::optional<In2<float>> weights, Out2<float> y) {
    const auto found = parts_.find({layer, slice, part});
    if (found == parts_.end())
      throw nb::key_error(("no chunk of layer " + std::to_string(layer) + ", slice " + std::to_string(slice) + ", part " +
                           std::to_string(part) + " was added")
                              .c_str());
    const std::uint32_t hidden = found->second.views.front().hidden();
    const std::uint32_t num_tokens = bounded(x.shape(0), 1u << 16, "number of tokens");
    if (x.shape(1) != hidden || y.shape(0) != num_tokens || y.shape(1) != hidden)
      throw nb::value_error("x and y must be [num_tokens, hidden]");
    if (experts.has_value() != weights.has_value()) throw nb::value_error("experts and weights go together");
    std::uint32_t top_k = 0;
    std::vector<Route> routes;
    if (experts) {
      top_k = bounded(experts->shape(1), 4096, "number of experts a token");
      if (experts->shape(0) != num_tokens || weights->shape(0) != num_tokens || weights->shape(1) != top_k)
        throw nb::value_error("experts and weights must be [num_tokens, top_k]");
      routes.resize(std::size_t{num_tokens} * top_k);
      for (std::size_t i = 0; i < routes.size(); ++i) routes[i] = {experts->data()[i], weights->data()[i]};
    }
    nb::gil_scoped_release release;
    const std::lock_guard guard(busy_);
    static constexpr Route kNone{};
    const FfnBatch batch{num_tokens, hidden, top_k, x.data(), !experts ? nullptr : routes.empty() ? &kNone : routes.data()};
    ffn_part(kernels_, team_, found->second.views, batch, y.data(), workspace_);
  }

 private:
  struct PartChunks {
    std::vector<WeightMemory> memory;
    std::vector<PackedChunk> views;
  };

  std::optional<std::string> add(std::span<const std::byte> in, Key& key) {
    ChunkInfo info;
    if (auto error = parse_chunk(in, info)) return error;
    WeightMemory memory(info.packed_bytes);
    if (auto error = pack_chunk(in, memory.bytes())) return error;
    std::optional<PackedChunk> view = PackedChunk::open(memory.bytes());
    if (!view) return "the packed chunk does not open";
    const std::lock_guard guard(busy_);
    key = {info.layer, info.slice, info.part};
    if (const auto held = parts_.find(key); held != parts_.end()) {
      for (const PackedChunk& other : held->second.views) {
        if (other.hidden() != view->hidden() || other.format() != view->format())
          return "the chunk's hidden size or format is not that of the part's other chunks";
        for (const PackedChunk::Section& a : other.sections())
          for (const PackedChunk::Section& b : view->sections())
            if (a.expert == b.expert) return "expert " + std::to_string(a.expert) + " is already in another chunk of this part";
      }
    }
    PartChunks& part = parts_[key];
    part.memory.push_back(std::move(memory));
    part.views.push_back(std::move(*view));
    return std::nullopt;
  }

  const Kernels& kernels_;
  Team team_;
  std::mutex busy_;
  Workspace workspace_;
  std::map<Key, PartChunks> parts_;
};

// (value, limit, ratio, seconds a call, how the limit was read) of one row of `duckctl bench kernels`.
std::tuple<double, double, double, double, std::string> measure(bool gemm, const std::string& impl,
                                                                const std::string& format, std::uint32_t num_tokens,
                                                                std::int64_t threads, std::uint32_t rounds,
                                                                std::uint64_t bytes_a_call) {
  const CpuFeatures cpu = cpu_features();
  if (!cpu.avx2 || !cpu.fma) throw nb::value_error("the limits are measured with AVX2 and FMA, which this CPU lacks");
  const Kernels& kernels = selected(impl);
  const Format code = format_of(format);
  const std::uint32_t num_threads = checked_threads(threads);
  nb::gil_scoped_release release;
  Team team(num_threads);
  const Measured m = (gemm ? measure_gemm : measure_gemv)(kernels, team, code, num_tokens, rounds, bytes_a_call);
  return {m.value, m.limit, m.ratio, m.seconds, m.how};
}

// Measures, and has products of this process use what was found from now on.
std::uint32_t tune_prefetch(const std::optional<std::string>& impl, std::int64_t threads) {
  const Kernels& kernels = selected(impl);
  const std::uint32_t num_threads = checked_threads(threads);
  nb::gil_scoped_release release;
  Team team(num_threads);
  const std::uint32_t bytes = fastest_prefetch(kernels, team);
  set_prefetch_bytes(bytes);
  return bytes;
}

nb::dict features_dict() {
  const CpuFeatures f = cpu_features();
  nb::dict out;
  out["avx2"] = f.avx2;
  out["fma"] = f.fma;
  out["f16c"] = f.f16c;
  out["avx512f"] = f.avx512f;
  out["avx512bw"] = f.avx512bw;
  out["avx512vl"] = f.avx512vl;
  out["avx_vnni"] = f.avx_vnni;
  out["aes"] = f.aes;
  out["pclmul"] = f.pclmul;
  return out;
}

}  // namespace

NB_MODULE(_kernels, m) {
  m.doc() = "Number formats, packing and the FFN kernels (native part).";
  nb::set_leak_warnings(false);
  m.def("implementations", [] {
    std::vector<std::string> names;
    for (const Kernels* kernels : implementations()) names.emplace_back(kernels->name);
    return names;
  });
  m.def("selected", [](const std::optional<std::string>& impl) { return std::string(selected(impl).name); },
        "impl"_a = nb::none());
  m.def("cpu_features", &features_dict);
  m.def("measure", &measure, "gemm"_a, "impl"_a, "format"_a, "num_tokens"_a, "threads"_a, "rounds"_a, "bytes_a_call"_a);
  m.def("tune_prefetch", &tune_prefetch, "impl"_a = nb::none(), "threads"_a = 1);
  m.def("prefetch_bytes", &prefetch_bytes);
  m.def("set_prefetch_bytes", &set_prefetch_bytes, "bytes"_a);
  m.def("quantize", &quantize, "format"_a, "w"_a, "codes"_a, "signs"_a = nb::none(), "scales"_a);
  m.def("round_bf16", &round_bf16, "w"_a, "out"_a);
  m.def("decode_table", &decode_table, "format"_a, "out"_a);

  nb::class_<PackedMatrix>(m, "PackedMatrix")
      .def_prop_ro("num_rows", [](const PackedMatrix& matrix) { return matrix.shape().num_rows; })
      .def_prop_ro("num_cols", [](const PackedMatrix& matrix) { return matrix.shape().num_cols; })
      .def_prop_ro("num_bytes", &PackedMatrix::num_bytes);
  m.def("pack_matrix", &pack_matrix, "format"_a, "codes"_a, "signs"_a.none(), "scales"_a.none(), "row0"_a, "num_rows"_a,
        "col0"_a, "num_cols"_a, nb::rv_policy::take_ownership);
  m.def("gemv", &gemv, "matrix"_a, "x"_a, "y"_a, "impl"_a.none(), "threads"_a);
  m.def("unpack", &unpack_matrix, "matrix"_a, "out"_a, "impl"_a.none());

  nb::class_<Shard>(m, "Shard")
      .def(nb::init<const std::optional<std::string>&, std::int64_t>(), "impl"_a.none(), "threads"_a)
      .def_prop_ro("implementation", &Shard::implementation)
      .def_prop_ro("threads", &Shard::threads)
      .def("add_chunk", &Shard::add_chunk, "logical"_a)
      .def("ffn", &Shard::ffn, "layer"_a, "slice"_a, "part"_a, "x"_a, "experts"_a.none(), "weights"_a.none(), "y"_a);
}
