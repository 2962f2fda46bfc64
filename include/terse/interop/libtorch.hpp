// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "terse/core/error.hpp"
#include "terse/core/layout.hpp"

// This header compiles as C++17 and needs no CUDA header. A unit that includes it takes long to compile, so keep LibTorch in
// one unit of the program, with an interface of plain pointers. LibTorch's current stream comes from
// interop/libtorch_cuda.hpp.

namespace terse::interop {

/// A LibTorch module's parameters and gradients, each as one flat arena of `Value`.
///
///     Net net;                                        // any torch::nn::Module, or a holder of one
///     terse::interop::FlatModule flat(net);
///     auto optimizer = make_optimizer(flat.layout());  // sees names, shapes and offsets
///     for (...) {
///       flat.zero_gradients();
///       loss_of(net, batch).backward();               // accumulates into flat.gradients()
///       flat.check_gradients();
///       optimizer.step({flat.parameters(), flat.size()}, {flat.gradients(), flat.size()});
///     }
///
/// A step copies nothing: the module's parameters are views of the first arena, their gradients are views of the
/// second, and autograd accumulates into existing gradients. So don't release the gradients (`zero_grad(set_to_none =
/// true)`, `backward` with `create_graph`) and don't move the module (`to(device)`, `to(dtype)`) afterwards.
/// `check_gradients` detects both. The arenas live as long as this object or any tensor in them, so the module may
/// outlive it. The module must stay at its address while it is checked.
///
/// The layout has one segment for each parameter that requires a gradient, with the name and in the order of
/// `named_parameters()`. Frozen parameters (`requires_grad` false) and buffers, such as the running statistics of
/// batch normalization, are excluded and stay separate on each rank. A parameter shared by several modules appears
/// once, under its first name. The trained parameters are fixed at construction. Before it, freeze and unfreeze
/// parameters and register submodules; otherwise make this object again. `check_gradients` detects later changes.
///
/// Tensors that share memory without being one tensor would be separated in the arenas, so they are refused.
///
/// Modules in 16 bits have arenas of `c10::BFloat16` or `c10::Half`, with the layout of `terse::bf16` and
/// `terse::fp16` in memory. The optimizer then keeps fp32 masters:
///
///     net.to(torch::kBFloat16);
///     terse::interop::FlatModuleOf<c10::BFloat16> flat(net);
///     terse::Optimizer optimizer{recipe, transport, flat.layout(), {}, {}, terse::Numbers<terse::bf16>{}};
///     optimizer.step({reinterpret_cast<terse::bf16*>(flat.parameters()), flat.size()}, ...);
///
/// A module on a CUDA device has its arenas there, in memory of LibTorch's allocator. Work on them is in the order of
/// LibTorch's current stream. So construct, zero and train under the same stream, and give the optimizer an executor
/// on it.
template <class Value = float>
class FlatModuleOf {
  static constexpr torch::ScalarType dtype = c10::CppTypeToScalarType<Value>::value;
  static_assert(std::is_same_v<Value, float> || std::is_same_v<Value, c10::BFloat16> ||
                    std::is_same_v<Value, c10::Half>,
                "terse: a FlatModuleOf has arenas of float, c10::BFloat16 or c10::Half");

 public:
  /// Function called for each segment before it is added to the layout. It may set `learning_rate_scale`,
  /// `weight_decay`, `hidden`, `compress` and `group`; changes of other members are ignored.
  using Mark = std::function<void(Segment&)>;

  /// Moves the module's parameters, with their values, into a new arena, and their gradients, set to zero, into
  /// another. Copies the parameters once. Throws usage_error with the name of the first unsuitable parameter. It
  /// isn't a dense contiguous tensor of `Value` on the CPU or a CUDA device, is on another device than the first,
  /// shares memory with another parameter or buffer, or is a view of a larger buffer that anything but the module's
  /// own tensors holds. The module is then unchanged.
  explicit FlatModuleOf(torch::nn::Module& module, const Mark& mark = {}) : module_(&module) {
    for (const auto& item : module.named_parameters()) {
      const torch::Tensor& parameter = item.value();
      if (!trains(parameter) || holds(parameter)) continue;
      refuse_unless_flat(item.key(), parameter);
      if (members_.empty()) device_ = parameter.device();

      Segment segment{item.key(), parameter.sizes().vec()};
      if (mark) {
        Segment marked = segment;
        mark(marked);
        segment.learning_rate_scale = marked.learning_rate_scale;
        segment.weight_decay = marked.weight_decay;
        segment.compress = marked.compress;
        segment.hidden = marked.hidden;
        segment.group = marked.group;
      }
      layout_.add(std::move(segment));
      members_.push_back({item.key(), parameter, 0});
    }
    refuse_ties();

    torch::NoGradGuard no_grad;
    parameters_ = make_arena(layout_.size(), device_);
    gradients_ = make_arena(layout_.size(), device_);
    if (!device_.is_cpu()) all_gradients_ = tensor_at(gradients_, 0, {layout_.size()});
    for (std::size_t m = 0; m < members_.size(); ++m) {
      members_[m].offset = layout_.segments()[m].offset;
      torch::Tensor& parameter = members_[m].parameter;
      const torch::Tensor place = tensor_at(parameters_, members_[m].offset, parameter.sizes());
      place.copy_(parameter);
      parameter.set_data(place);
      parameter.mutable_grad() = tensor_at(gradients_, members_[m].offset, parameter.sizes());
    }
  }

  /// Makes the module in a holder of TORCH_MODULE flat.
  template <class M>
  explicit FlatModuleOf(const torch::nn::ModuleHolder<M>& module, const Mark& mark = {})
      : FlatModuleOf(*module.ptr(), mark) {}

  FlatModuleOf(const FlatModuleOf&) = delete;
  FlatModuleOf& operator=(const FlatModuleOf&) = delete;
  FlatModuleOf(FlatModuleOf&&) noexcept = default;
  FlatModuleOf& operator=(FlatModuleOf&&) noexcept = default;
  ~FlatModuleOf() = default;

  const Layout& layout() const noexcept { return layout_; }
  /// Returns the device of the arenas, or the CPU for a module without parameters.
  torch::Device device() const noexcept { return device_; }
  /// Returns the arena of parameters: `size()` elements on `device()`, aligned to 64 bytes; the padding is zero.
  Value* parameters() noexcept { return parameters_.get(); }
  const Value* parameters() const noexcept { return parameters_.get(); }
  /// Returns the arena of gradients, like `parameters()`.
  Value* gradients() noexcept { return gradients_.get(); }
  const Value* gradients() const noexcept { return gradients_.get(); }
  /// Returns the elements of each arena, padding included: `layout().size()`.
  index_t size() const noexcept { return layout_.size(); }

  /// Sets all gradients to zero. One pass over the arena; on a CUDA device enqueued on the current stream.
  void zero_gradients() {
    if (device_.is_cpu()) {
      std::fill_n(gradients_.get(), layout_.size(), Value(0));
    } else {
      torch::NoGradGuard no_grad;
      all_gradients_.zero_();
    }
  }

  /// Throws usage_error with the name of the first wrong parameter: its values or gradient are no longer in the
  /// arenas, it was frozen later, or it requires a gradient and isn't in the arenas. Call it after every backward
  /// pass. Compares two pointers per parameter and visits the module's parameters: 0.1 ms for 240 of them.
  void check_gradients() const {
    for (const Member& member : members_) check(member);
    check_members();
  }
  /// Checks one segment of the layout in the same way, without visiting the module.
  void check_gradient(index_t segment) const { check(members_.at(static_cast<std::size_t>(segment))); }

  /// Returns the module's parameter that is a segment of the layout.
  const torch::Tensor& parameter(index_t segment) const {
    return members_.at(static_cast<std::size_t>(segment)).parameter;
  }

 private:
  struct Member {
    std::string name;
    torch::Tensor parameter;
    index_t offset;
  };

  static bool trains(const torch::Tensor& parameter) {
    return parameter.defined() && parameter.requires_grad();
  }
  bool holds(const torch::Tensor& parameter) const {
    return std::any_of(members_.begin(), members_.end(),
                       [&](const Member& member) { return member.parameter.is_same(parameter); });
  }

  /// Checks that all trained parameters of the module are in the arenas.
  void check_members() const {
    auto next = members_.begin();  // usually the same parameters in the same order
    for (const auto& item : module_->named_parameters()) {
      if (!trains(item.value())) continue;
      if (next != members_.end() && next->parameter.is_same(item.value()))
        ++next;
      else if (!holds(item.value()))
        throw usage_error(
            "parameter '" + item.key() +
            "' requires a gradient, but was frozen or not there when the module became flat, so "
            "no step would train it; make the DataParallel or FlatModule again");
    }
  }

  void check(const Member& member) const {
    if (!member.parameter.requires_grad())
      throw usage_error("parameter '" + member.name +
                        "' was frozen after the module became flat, and steps may still move it; make the "
                        "DataParallel or FlatModule again");
    const torch::Tensor& gradient = member.parameter.grad();
    if (!gradient.defined())
      throw usage_error("the gradient of parameter '" + member.name +
                        "' is gone, by zero_grad() for one: call DataParallel::begin or "
                        "FlatModule::zero_gradients instead");
    if (!lies_at(gradient, gradients_.get() + member.offset, member.parameter))
      throw usage_error(
          "the gradient of parameter '" + member.name +
          "' was replaced by a tensor outside of the flat arena, after zero_grad(true) for one: "
          "call DataParallel::begin or FlatModule::zero_gradients instead");
    if (!lies_at(member.parameter, parameters_.get() + member.offset, member.parameter))
      throw usage_error("parameter '" + member.name +
                        "' was moved out of the flat arena; convert or move the module before it is flat");
  }

  void refuse_unless_flat(const std::string& name, const torch::Tensor& parameter) const {
    std::string reason;
    if (!parameter.device().is_cpu() && !parameter.device().is_cuda())
      reason = "lies on " + parameter.device().str() +
               ", but a FlatModule takes tensors on the CPU or on a CUDA device";
    else if (!members_.empty() && !lies_here(parameter))
      reason = "lies on " + parameter.device().str() + ", but '" + members_.front().name + "' on " +
               device_.str() + ": a FlatModule takes a module on one device";
    else if (parameter.layout() != torch::kStrided)
      reason = "is sparse, but a FlatModule takes dense tensors only";
    else if (parameter.scalar_type() != dtype)
      reason = std::string("holds ") + c10::toString(parameter.scalar_type()) +
               ", but this FlatModule takes " + c10::toString(dtype) + " only";
    else if (!parameter.is_contiguous())
      reason = "is not contiguous; give the module parameter.contiguous()";
    else if (!parameter.is_leaf())
      reason = "is not a leaf, so it never gets a gradient";
    if (!reason.empty()) throw usage_error("parameter '" + name + "' " + reason);
  }

  /// Refuses tensors whose shared values would be separated in the arenas.
  void refuse_ties() const {
    struct Place {
      std::string name;
      torch::Tensor tensor;
      const char *begin, *end;
    };
    std::vector<Place> places;
    for (const auto& named : {module_->named_parameters(), module_->named_buffers()})
      for (const auto& item : named) {
        const torch::Tensor& tensor = item.value();
        if (!tensor.defined() || !tensor.has_storage() || tensor.numel() == 0) continue;
        std::int64_t reach = 1;  // elements from the first one to the last
        for (std::int64_t d = 0; d < tensor.dim(); ++d) reach += (tensor.size(d) - 1) * tensor.stride(d);
        const char* const begin = static_cast<const char*>(tensor.data_ptr());
        places.push_back(
            {item.key(), tensor, begin, begin + reach * static_cast<std::int64_t>(tensor.element_size())});
      }
    for (const auto& [member, parameter, offset] : members_) {
      const char* const begin = static_cast<const char*>(parameter.data_ptr());
      std::set<const c10::TensorImpl*> holders;
      for (const Place& other : places) {
        if (begin < other.end && other.begin < begin + parameter.nbytes() && !other.tensor.is_same(parameter))
          throw usage_error("parameter '" + member + "' shares memory with '" + other.name +
                            "', and would not in the flat arena; register one tensor twice, or give one of "
                            "the two a copy: set_data(data().clone())");
        if (other.tensor.storage().is_alias_of(parameter.storage()))
          holders.insert(other.tensor.unsafeGetTensorImpl());
      }
      if (parameter.storage().nbytes() > parameter.nbytes() &&
          parameter.storage().use_count() > holders.size())
        throw usage_error("parameter '" + member +
                          "' is a view of a larger buffer, and would not be in the flat arena; give it a "
                          "copy: set_data(data().clone())");
    }
  }

  static std::shared_ptr<Value> make_arena(index_t size, torch::Device device) {
    if (!device.is_cpu()) {
      const torch::Tensor arena = torch::zeros({size}, torch::TensorOptions().dtype(dtype).device(device));
      // Blocks of the allocator begin at multiples of 512 bytes.
      return {static_cast<Value*>(arena.data_ptr()), [arena](Value*) {}};
    }
    constexpr std::align_val_t boundary{64};
    const std::size_t elements = static_cast<std::size_t>(size);
    auto* const data = static_cast<Value*>(::operator new(elements * sizeof(Value), boundary));
    std::fill_n(data, elements, Value(0));
    return {data, [](Value* arena) { ::operator delete (arena, std::align_val_t{64}); }};
  }

  // Returns a tensor whose deleter holds the arena, so that it doesn't dangle if this object is destroyed first.
  torch::Tensor tensor_at(const std::shared_ptr<Value>& arena, index_t offset,
                          torch::IntArrayRef sizes) const {
    const auto options = torch::TensorOptions().dtype(dtype).device(device_);
    // LibTorch asks CUDA for a pointer's device, and a pointer after the last element has none.
    if (!device_.is_cpu() && c10::multiply_integers(sizes) == 0) return torch::empty(sizes, options);
    return torch::from_blob(
        arena.get() + offset, sizes, [arena](void*) {}, options);
  }

  bool lies_here(const torch::Tensor& tensor) const {
    return device_.is_cpu() ? tensor.device().is_cpu() : tensor.device() == device_;
  }

  bool lies_at(const torch::Tensor& tensor, const Value* place, const torch::Tensor& like) const {
    return lies_here(tensor) && tensor.scalar_type() == dtype && tensor.sizes() == like.sizes() &&
           tensor.is_contiguous() && (tensor.numel() == 0 || tensor.data_ptr() == place);
  }

  const torch::nn::Module* module_;
  Layout layout_;
  std::vector<Member> members_;
  torch::Device device_{torch::kCPU};
  std::shared_ptr<Value> parameters_;
  std::shared_ptr<Value> gradients_;
  torch::Tensor all_gradients_;  // if the host can't access the arena
};

/// A FlatModuleOf for modules in float32.
using FlatModule = FlatModuleOf<>;

}  // namespace terse::interop
