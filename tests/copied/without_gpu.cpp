// As much of the CUDA runtime as an exported file and the program use, in main memory, so that what
// they ask for, say and return can be tested without a GPU. A kernel's launch is a `Launch`, which
// stands before this file: it is made of what was launched, and run then or by a graph. Prints each
// call and its number to stderr. FAIL=n lets call n fail; COOPERATES=0 is a GPU without cooperative
// launches, BLOCKS=n says that n blocks fit a multiprocessor.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

struct CUstream_st {
    unsigned long long id;
    bool captured;
};

struct CUgraph_st {
    std::vector<Launch> launches;
};

static CUgraph_st recorded;

static std::map<const void*, std::string>& names()  // of kernels, which register before main
{
    static std::map<const void*, std::string> found;
    return found;
}

static long number(const char* name, long otherwise)
{
    const char* text = std::getenv(name);
    return text ? std::atol(text) : otherwise;
}

static cudaError_t called(const char* name, long long detail = 0, long long more = 0)
{
    static long count = 0;
    std::fprintf(stderr, "call %ld %s %lld %lld\n", ++count, name, detail, more);
    return number("FAIL", 0) == count ? cudaErrorUnknown : cudaSuccess;
}

extern "C" {
void** __cudaRegisterFatBinary(void*) { return nullptr; }
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaInitModule(void**) {}
void __cudaRegisterFunction(void**, const char* stub, char*, const char* name, int, void*, void*,
                            void*, void*, int*)
{
    names()[stub] = name;
}
void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
unsigned __cudaPushCallConfiguration(dim3, dim3, size_t, cudaStream_t) { return 1; }
cudaError_t __cudaPopCallConfiguration(dim3*, dim3*, size_t*, void*) { return cudaErrorUnknown; }
cudaError_t __cudaLaunchKernel(const void*, dim3, dim3, void**, size_t, cudaStream_t)
{
    return cudaErrorUnknown;
}
cudaError_t __cudaLaunchKernel_ptsz(const void*, dim3, dim3, void**, size_t, cudaStream_t)
{
    return cudaErrorUnknown;
}
cudaError_t __cudaGetKernel(cudaKernel_t*, const void*) { return cudaErrorUnknown; }
cudaError_t cudaLaunchKernel(const void*, dim3, dim3, void**, size_t, cudaStream_t)
{
    return cudaErrorUnknown;
}

const char* cudaGetErrorName(cudaError_t error)
{
    static char text[32];
    std::snprintf(text, sizeof text, "%d", error);
    return text;
}
const char* cudaGetErrorString(cudaError_t) { return "refused"; }

cudaError_t cudaMalloc(void** memory, size_t bytes)
{
    *memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
    return cudaSuccess;
}
cudaError_t cudaMemset(void* memory, int value, size_t bytes)
{
    std::memset(memory, value, bytes);
    return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind)
{
    std::memcpy(to, from, bytes);
    return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t)
{
    std::memset(memory, value, bytes);
    return called("cudaMemsetAsync", static_cast<long long>(bytes));
}
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned)
{
    static unsigned long long count = 0;
    *stream = new CUstream_st{++count, false};
    return cudaSuccess;
}
cudaError_t cudaStreamGetId(cudaStream_t stream, unsigned long long* id)
{
    if (stream->captured) return cudaErrorStreamCaptureUnsupported;
    static unsigned long long others = 0;  // RENUMBER: its handle was another stream's before
    *id = stream->id + (std::getenv("RENUMBER") ? ++others : 0);
    return called("cudaStreamGetId");
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status)
{
    *status = stream->captured ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return called("cudaStreamIsCapturing");
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode)
{
    stream->captured = true;
    return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph)
{
    stream->captured = false;
    *graph = &recorded;
    return cudaSuccess;
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t*, cudaGraph_t, unsigned long long)
{
    return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t)
{
    for (Launch& launch : recorded.launches) launch.run();
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device)
{
    *device = 0;
    return called("cudaGetDevice");
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int)
{
    *value = attribute == cudaDevAttrMultiProcessorCount ? 132 // of an H200
           : attribute == cudaDevAttrL2CacheSize ? 60 << 20
           : attribute == cudaDevAttrComputeCapabilityMajor ? 9
           : attribute == cudaDevAttrComputeCapabilityMinor ? 0
           : attribute == cudaDevAttrMaxSharedMemoryPerBlockOptin ? 227 * 1024
                                                                  : int(number("COOPERATES", 1));
    return called("cudaDeviceGetAttribute", attribute);
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*)
{
    *attributes = {};
    attributes->sharedSizeBytes = 1024;
    return called("cudaFuncGetAttributes");
}
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute attribute, int value)
{
    const bool shared = attribute == cudaFuncAttributeMaxDynamicSharedMemorySize;
    return called(shared ? "shared" : "clusters", value);
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int block,
                                                          size_t shared)
{
    *blocks = int(number("BLOCKS", 2));
    return called("occupancy", block, static_cast<long long>(shared));
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* kernel, void** given)
{
    std::string name = "launch";
    for (unsigned i = 0; i < config->numAttrs; ++i)
        name += config->attrs[i].id == cudaLaunchAttributeCooperative ? "-cooperative"
                                                                      : "-programmatic";
    name += " " + names().at(kernel) + " " + std::to_string(config->blockDim.x);
    if (const cudaError_t error = called(name.c_str(), config->gridDim.x,
                                         static_cast<long long>(config->dynamicSmemBytes)))
        return error;
    Launch launch(names().at(kernel), *config, given);
    if (config->stream && config->stream->captured) recorded.launches.push_back(launch);
    else launch.run();
    return cudaSuccess;
}
}
