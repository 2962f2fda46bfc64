// SPDX-License-Identifier: Apache-2.0
#include <c10/util/Exception.h>

#if !__has_include("terse/interop/libtorch.hpp") || !__has_include(<torch/torch.h>)
#error "terse::libtorch and terse-libtorch have to say where the headers are"
#endif

// Links what they say; LibTorch's whole interface takes half a minute to compile, and is the business of other tests.
int main(int count, char**) { TORCH_CHECK(count > 0, "no name"); }
