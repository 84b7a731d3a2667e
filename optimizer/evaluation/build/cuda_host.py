"""What a host compiler needs to know of kernels before it reads the host unit of a cut CUDA source."""

HOST_PREAMBLE = """
#include <cuda_runtime.h>
#include <tuple>
#include <type_traits>
#include <utility>
namespace htam_host {
struct Config {
  dim3 grid, block; size_t shared; cudaStream_t stream;
  Config(dim3 g, dim3 b, size_t s = 0, cudaStream_t t = nullptr) : grid(g), block(b), shared(s), stream(t) {}
};
template <class... P, std::size_t... I>
inline void start(const void* kernel, const Config& c, std::tuple<P...>& values, std::index_sequence<I...>) {
  void* pointers[sizeof...(P) + 1] = {(void*)&std::get<I>(values)..., nullptr};
  (void)cudaLaunchKernel(kernel, c.grid, c.block, pointers, c.shared, c.stream);
}
template <class T>
inline T implicit(T value) { return value; }
template <class... P, class... A>
inline void launch(const void* kernel, void (*)(P...), const Config& c, A&&... arguments) {
  static_assert(sizeof...(P) == sizeof...(A), "a kernel's arguments are not its parameters");
  std::tuple<std::remove_cv_t<P>...> values{implicit<std::remove_cv_t<P>>(std::forward<A>(arguments))...};
  start(kernel, c, values, std::index_sequence_for<P...>{});
}
}  // namespace htam_host
// What cuda_runtime.h offers to nvcc alone: these calls with a kernel instead of its address.
template <class... P>
inline cudaError_t cudaFuncSetAttribute(void (*kernel)(P...), cudaFuncAttribute which, int value) {
  return ::cudaFuncSetAttribute((const void*)kernel, which, value);
}
template <class... P>
inline cudaError_t cudaFuncSetCacheConfig(void (*kernel)(P...), cudaFuncCache preference) {
  return ::cudaFuncSetCacheConfig((const void*)kernel, preference);
}
template <class... P>
inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* found, void (*kernel)(P...)) {
  return ::cudaFuncGetAttributes(found, (const void*)kernel);
}
// Device headers leave these empty for a host compiler, but aliases of them stand outside kernels.
namespace cooperative_groups {}
namespace nvcuda { namespace wmma {} }
"""
"""Launches through ``cudaLaunchKernel``, and what ``cuda_runtime.h`` offers to nvcc alone."""
