// SPDX-License-Identifier: Apache-2.0
#include "gossip.hpp"
#include "terse/compressor/uniform.hpp"
#include "terse/optimizer/compressed_gossip.hpp"
#include "terse/optimizer/moniqua_sgd.hpp"

namespace train {
namespace {

template <int Bits, class Rounding>
using Levels = terse::Uniform<Bits, Rounding, terse::Symmetric, terse::MaxAbs, terse::PerBlock<256>>;

}  // namespace

template <class P>
std::unique_ptr<AnyOptimizer> make_compressed_gossip_optimizer(Optimizer kind, const Options& options,
                                                               P& place, const terse::Layout& layout) {
  using Nearest4 = Levels<4, terse::Nearest>;
  using Nearest8 = Levels<8, terse::Nearest>;
  using Stochastic8 = Levels<8, terse::Stochastic>;
  switch (kind) {
    case Optimizer::choco_sgd:
      return make_mixing<terse::ChocoSgd<Nearest4, OnFixedGraph, terse::MomentumDirection>>(kind, options,
                                                                                            place, layout);
    case Optimizer::deep_squeeze:
      // It compresses parameters, not how they move, which takes more bits.
      return make_mixing<terse::DeepSqueeze<Nearest8, OnAnyGraph, terse::MomentumDirection>>(kind, options,
                                                                                             place, layout);
    case Optimizer::dcd_sgd:
      return make_mixing<terse::DcdSgd<Stochastic8, OnFixedGraph>>(kind, options, place, layout);
    case Optimizer::moniqua_sgd: {
      using Recipe = terse::MoniquaSgd<terse::Moniqua<8>, OnAnyGraph, terse::MomentumDirection>;
      Recipe recipe = mixing_recipe<Recipe>(kind, options);
      recipe.compressor.bound = static_cast<float>(moniqua_bound_of(options, kind));
      return std::make_unique<TheOptimizer<Recipe, P>>(recipe, place, layout, terse_options(options));
    }
    default:
      return make_mixing<terse::Beer<Nearest4, OnFixedGraph>>(kind, options, place, layout);
  }
}

template std::unique_ptr<AnyOptimizer> make_compressed_gossip_optimizer(Optimizer, const Options&, OnHost&,
                                                                        const terse::Layout&);

}  // namespace train
