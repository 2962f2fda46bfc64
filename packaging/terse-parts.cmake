# SPDX-License-Identifier: Apache-2.0
# The targets of terse, for an installed copy (terse-config.cmake) and for a project that has this one inside (CMakeLists.txt).
# TERSE_SCOPE is GLOBAL where targets must be seen beyond this folder.

# terse_targets(INCLUDE): terse::terse and terse::cuda, of the headers in that folder.
function(terse_targets include)
  if(TARGET terse::terse)
    return()
  endif()
  add_library(terse::terse INTERFACE IMPORTED ${TERSE_SCOPE})
  set_target_properties(terse::terse PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${include}"
    INTERFACE_COMPILE_FEATURES cxx_std_20
    INTERFACE_COMPILE_OPTIONS "$<$<COMPILE_LANGUAGE:CXX>:-fno-math-errno>"
    INTERFACE_LINK_LIBRARIES Threads::Threads)

  # For targets with .cu files. Which architectures is the project's affair (CMAKE_CUDA_ARCHITECTURES). The standard is
  # an option, since CMake 3.25 has no feature for it; a target's own CUDA_STANDARD takes precedence.
  add_library(terse::cuda INTERFACE IMPORTED ${TERSE_SCOPE})
  set(_terse_cuda "$<COMPILE_LANGUAGE:CUDA>")
  set(_terse_standard "$<STREQUAL:$<TARGET_PROPERTY:CUDA_STANDARD>,>")
  set_target_properties(terse::cuda PROPERTIES
    INTERFACE_COMPILE_OPTIONS
      "$<${_terse_cuda}:-fmad=false;--expt-relaxed-constexpr;-Xcompiler=-fno-math-errno>;$<$<AND:${_terse_cuda},${_terse_standard}>:-std=c++20>"
    INTERFACE_LINK_LIBRARIES terse::terse)
endfunction()

# Optional parts, each a target of its own: what terse's headers of that part need. The core is the caller's affair.

# _terse_missing(PART WHAT): the part can't be had.
macro(_terse_missing part what)
  set(terse_${part}_FOUND FALSE)
  string(APPEND _terse_reasons "terse::${part} needs ${what}. ")
endmacro()

# _terse_part(PART LIBRARY ...): all is there.
macro(_terse_part part)
  set(terse_${part}_FOUND TRUE)
  if(NOT TARGET terse::${part})
    add_library(terse::${part} INTERFACE IMPORTED ${TERSE_SCOPE})
    set_target_properties(terse::${part} PROPERTIES INTERFACE_LINK_LIBRARIES "terse::terse;${ARGN}")
  endif()
endmacro()

# terse_find_part(PART): its target, and terse_PART_FOUND. Where it can't be had _terse_reasons says why.
macro(terse_find_part part)
  if("${part}" STREQUAL "mpi")
    find_package(MPI QUIET COMPONENTS CXX)
    find_package(Boost QUIET COMPONENTS mpi serialization)
    if(NOT MPI_CXX_FOUND)
      _terse_missing(mpi "an MPI for C++ (Debian: libopenmpi-dev)")
    elseif(NOT TARGET Boost::mpi OR NOT TARGET Boost::serialization)
      _terse_missing(mpi "Boost.MPI (Debian: libboost-mpi-dev)")
    else()
      _terse_part(mpi Boost::mpi Boost::serialization MPI::MPI_CXX)
    endif()
  elseif("${part}" STREQUAL "checkpoint")
    find_package(nlohmann_json QUIET)
    # Debian's xxHash has no configuration for CMake.
    find_path(terse_XXHASH_INCLUDE_DIR xxhash.h)
    find_library(terse_XXHASH_LIBRARY xxhash)
    mark_as_advanced(terse_XXHASH_INCLUDE_DIR terse_XXHASH_LIBRARY)
    if(NOT TARGET nlohmann_json::nlohmann_json)
      _terse_missing(checkpoint "nlohmann-json (Debian: nlohmann-json3-dev)")
    elseif(NOT terse_XXHASH_INCLUDE_DIR OR NOT terse_XXHASH_LIBRARY)
      _terse_missing(checkpoint "xxHash (Debian: libxxhash-dev)")
    else()
      _terse_part(checkpoint nlohmann_json::nlohmann_json "${terse_XXHASH_LIBRARY}")
      set_target_properties(terse::checkpoint PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${terse_XXHASH_INCLUDE_DIR}")
    endif()
  elseif("${part}" STREQUAL "libtorch")
    # Not by LibTorch's own configuration, which insists on CUDA's toolkit where LibTorch was built with CUDA. What terse
    # calls is in two libraries. A project that has found Torch itself, or names Torch_DIR, gets them from there.
    set(_terse_hints ${TORCH_ROOT} ${TORCH_INSTALL_PREFIX})
    if(Torch_DIR)
      list(APPEND _terse_hints "${Torch_DIR}/../../..")
    endif()
    find_path(terse_TORCH_INCLUDE_DIR torch/csrc/api/include/torch/torch.h HINTS ${_terse_hints} PATH_SUFFIXES include)
    find_library(terse_TORCH_CPU_LIBRARY torch_cpu HINTS ${_terse_hints} PATH_SUFFIXES lib)
    find_library(terse_C10_LIBRARY c10 HINTS ${_terse_hints} PATH_SUFFIXES lib)
    mark_as_advanced(terse_TORCH_INCLUDE_DIR terse_TORCH_CPU_LIBRARY terse_C10_LIBRARY)
    unset(_terse_hints)
    if(NOT terse_TORCH_INCLUDE_DIR OR NOT terse_TORCH_CPU_LIBRARY OR NOT terse_C10_LIBRARY)
      _terse_missing(libtorch "LibTorch (Debian: libtorch-dev; elsewhere: set TORCH_ROOT to the folder of its include and lib)")
    else()
      _terse_part(libtorch "${terse_TORCH_CPU_LIBRARY}" "${terse_C10_LIBRARY}")
      set_target_properties(terse::libtorch PROPERTIES INTERFACE_INCLUDE_DIRECTORIES
        "${terse_TORCH_INCLUDE_DIR};${terse_TORCH_INCLUDE_DIR}/torch/csrc/api/include")
    endif()
  elseif("${part}" STREQUAL "cuda")
    if(CMAKE_CUDA_COMPILER_VERSION AND CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 12)
      _terse_missing(cuda "nvcc 12 or later, not ${CMAKE_CUDA_COMPILER_VERSION}")
    else()
      set(terse_cuda_FOUND TRUE)
    endif()
  elseif("${part}" STREQUAL "nccl")
    if(NOT CMAKE_VERSION VERSION_LESS 3.17)
      find_package(CUDAToolkit 12 QUIET)
    endif()
    find_path(terse_NCCL_INCLUDE_DIR nccl.h HINTS ${NCCL_ROOT} ${CUDAToolkit_INCLUDE_DIRS} PATH_SUFFIXES include)
    find_library(terse_NCCL_LIBRARY nccl HINTS ${NCCL_ROOT} ${CUDAToolkit_LIBRARY_DIR} PATH_SUFFIXES lib lib64)
    mark_as_advanced(terse_NCCL_INCLUDE_DIR terse_NCCL_LIBRARY)
    if(NOT TARGET CUDA::cudart)
      _terse_missing(nccl "CUDA's toolkit, 12 or later, found by CMake 3.17 or later (CUDAToolkit_ROOT says where)")
    elseif(NOT terse_NCCL_INCLUDE_DIR OR NOT terse_NCCL_LIBRARY)
      _terse_missing(nccl "NCCL 2.18.1 or later (NCCL_ROOT says where)")
    else()
      _terse_part(nccl "${terse_NCCL_LIBRARY}" CUDA::cudart)
      set_target_properties(terse::nccl PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${terse_NCCL_INCLUDE_DIR}")
    endif()
  else()
    string(APPEND _terse_reasons "There is no part ${part}: parts are core, mpi, checkpoint, libtorch, cuda, nccl. ")
    set(terse_${part}_FOUND FALSE)
  endif()
endmacro()
