# Finds libtorch and makes two targets: torch::cpu (torch_cpu and c10, all that the core links) and torch::cuda (for the
# plug-in). A wheel's folder or any libtorch will do: -DTETRA_TORCH=DIR, CMAKE_PREFIX_PATH, or what `make deps` installed.
find_path(TETRA_TORCH_INCLUDE ATen/core/Tensor.h
  HINTS ${TETRA_TORCH}/include ${CMAKE_SOURCE_DIR}/.deps/python/torch/include
  PATH_SUFFIXES include)
if(NOT TETRA_TORCH_INCLUDE)
  message(FATAL_ERROR "libtorch not found; run `make deps`, or give its folder with -DTETRA_TORCH=DIR")
endif()
get_filename_component(TETRA_TORCH_ROOT ${TETRA_TORCH_INCLUDE} DIRECTORY)
set(TORCH_LIB ${TETRA_TORCH_ROOT}/lib)

file(STRINGS ${TETRA_TORCH_INCLUDE}/torch/headeronly/version.h _version REGEX "define TORCH_VERSION_(MAJOR|MINOR)")
string(REGEX REPLACE ".*MAJOR ([0-9]+).*MINOR ([0-9]+).*" "\\1.\\2" TORCH_VERSION "${_version}")
if(TORCH_VERSION VERSION_LESS 2.11)
  message(FATAL_ERROR "libtorch ${TORCH_VERSION} in ${TETRA_TORCH_ROOT} is too old; Tetra needs 2.11 or newer")
endif()
message(STATUS "libtorch ${TORCH_VERSION}: ${TETRA_TORCH_ROOT}")

# libtorch_cpu of the CUDA wheel asks for the CUDA runtime and CUPTI; either the toolkit or the small wheels have them.
find_path(TETRA_CUDART_DIR NAMES libcudart.so.13
  HINTS ${CMAKE_SOURCE_DIR}/.deps/python/nvidia/cu13/lib /usr/local/cuda/lib64)
find_path(TETRA_CUPTI_DIR NAMES libcupti.so.13
  HINTS ${CMAKE_SOURCE_DIR}/.deps/python/nvidia/cu13/lib /usr/local/cuda/lib64 /usr/local/cuda/extras/CUPTI/lib64)
set(TORCH_RUNPATH ${TORCH_LIB})
foreach(dir ${TETRA_CUDART_DIR} ${TETRA_CUPTI_DIR})
  list(APPEND TORCH_RUNPATH ${dir})
endforeach()
list(REMOVE_DUPLICATES TORCH_RUNPATH)

add_library(torch_headers INTERFACE)
target_include_directories(torch_headers SYSTEM INTERFACE ${TETRA_TORCH_INCLUDE}
                           ${TETRA_TORCH_INCLUDE}/torch/csrc/api/include)
target_compile_definitions(torch_headers INTERFACE USE_DISTRIBUTED USE_C10D_GLOO FMT_HEADER_ONLY=1 AT_PER_OPERATOR_HEADERS)

add_library(torch_cpu_target INTERFACE)
add_library(torch::cpu ALIAS torch_cpu_target)
target_link_libraries(torch_cpu_target INTERFACE torch_headers -Wl,--push-state,--no-as-needed ${TORCH_LIB}/libtorch_cpu.so
                      ${TORCH_LIB}/libc10.so -Wl,--pop-state)
list(JOIN TORCH_RUNPATH ":" _runpath)
target_link_options(torch_cpu_target INTERFACE -Wl,-rpath,${_runpath} -Wl,--allow-shlib-undefined)
