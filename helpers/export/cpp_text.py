"""The parts of an exported C++ file that are the same in every one; NAME is the function's."""

HEAD = """\
LICENCE
COPYRIGHT

NAME(PARAMETERS, ...): RESULT, in memory of the GPU. For SHAPES: BUILDS.

ORIGIN

Compile it once, alone, and link it to what calls it; add nothing to it, for it includes itself:

    COMPILE

-ftz=true takes the smallest numbers for 0; without it the machine code is not what was measured. \
Wants CUDA 12.0 or newer. Other files define UPPER_DECLARATIONS and include this one, or say:

DECLARATIONS

ABOUT

Sizes count elements. A call enqueues one launch on the stream and allocates nothing; it may be \
captured in a graph. An empty matrix is right, and nothing is launched for it. Else a call that \
launches nothing returns

"""

ERRORS = {
    "cudaErrorInvalidValue": "a pointer is null, {overlap}, or the kernel takes no such {numbers}",
    "cudaErrorMisalignedAddress": "{misaligned}",
    "cudaErrorNotSupported": "this file has no build for these sizes on this GPU",
    "cudaErrorNoKernelImageForDevice": "the GPU is too old",
    "cudaErrorCooperativeLaunchTooLarge": "blocks that must run at once do not fit the GPU",
}
LENT = {"cudaErrorInvalidResourceHandle": "the workspace is lent to another stream"}

BOXES = """\
Some launches want a workspace, memory of the GPU that an object fills with zeros once and lends \
to one stream:

    const size_t bytes = NAME_workspace(GIVEN);  // 0 where none is wanted
    NAME_zeros zeros;
    if (bytes) cudaMalloc(&memory, bytes), zeros.prepare(memory, bytes, stream);
    NAME(NAMES, zeros, stream);

Another stream needs memory and an object of its own, and is refused with this one; so is a call \
whose object was not prepared (cudaErrorInvalidValue). A graph that holds such a call must not run \
beside anything else that uses the same object.
"""

PLAN = """\
// ---- plan: which build a matrix wants, and how it is launched ----------------------------------

enum class Dtype { DTYPES };
enum class Kernel { KERNELS };

constexpr long long bytes_of([[maybe_unused]] Dtype dtype)
{
    return BYTES;
}

struct Matrix {
    Dtype dtype;
    long long size;                // bytes of an element
    long long rows, cols;
    long long x_stride, y_stride;  // elements from one row to the next
    long long x_start, y_start;    // addresses modulo 16INNER
};

struct Gpu {
    long long sms, l2;      // multiprocessors, bytes of L2 cache
    long long capability;   // 90 for 9.0
    long long max_shared;   // bytes that a block may have
};

struct Plan {
    cudaError_t error = cudaErrorInvalidValue;  // cudaSuccess if the kernel takes the matrix
    Kernel kernel = {};
    long long macros[MOST] = {};  // in the order of the header's table
    long long block = 0, grid = 0;
    long long shared = 0, workspace = 0;  // bytes
    long long cluster = 1, programmatic = 0;
    bool cooperative = false, strided = false;
    VALUES
};

struct Build {
    Kernel kernel;
    Dtype dtype;
    long long macros[MOST];
};

constexpr long long lesser(long long a, long long b) { return a < b ? a : b; }
constexpr long long greater(long long a, long long b) { return a < b ? b : a; }
constexpr long long ceil_div(long long number, long long by) { return (number + by - 1) / by; }

// The smallest power of two that is not below the number.
constexpr long long power_of_two(long long number)
{
    long long power = 1;
    while (power < number) power *= 2;
    return power;
}

constexpr Plan refused(Plan plan, cudaError_t error)
{
    plan.error = error;
    return plan;
}

// The plan as one that takes the matrix, unless a macro is not one that C has.
constexpr Plan accepted(Plan plan)
{
    for (const long long macro : plan.macros)
        if (macro < 0 || macro > MAX_INT) return plan;
    plan.error = cudaSuccess;
    return plan;
}

// Puts another plan in place of one; whether that takes the matrix.
constexpr bool use(Plan& plan, const Plan& other)
{
    plan = other;
    return plan.error == cudaSuccess;
}

// Whether rows follow each other without a gap.
constexpr bool contiguous(const Matrix& matrix)
{
    return matrix.rows == 1 || (matrix.x_stride == matrix.cols && matrix.y_stride == matrix.cols);
}

// Whether rows follow each other and each is whole packs of 16 bytes.
constexpr bool whole_packs(const Matrix& matrix)
{
    return matrix.x_start == 0 && matrix.y_start == 0 && contiguous(matrix)
        && matrix.cols * matrix.size % 16 == 0;
}

PRODUCT
// What holds for every kernel: sizes fit an int, rows do not overlap, and no matrix is larger than
// what addresses reach, so that the products of the plans fit 64 bits.
constexpr bool checked(const Matrix& matrix)
{
    if (matrix.rows < 1 || matrix.rows > MAX_INT) return false;
    if (matrix.cols < 1 || matrix.cols > MAX_INT) return false;
    const long long most = MAX_BYTES / matrix.size / matrix.rows;
DIVIDED    return matrix.x_stride >= matrix.cols && matrix.x_stride <= most
        && matrix.y_stride >= matrix.cols && matrix.y_stride <= most;
}
"""

AXIS = {  # of another axis than the last
    "INNER": "\n    long long inner = 1;           // elements from one column to the next",
    "PRODUCT\n": """\
// outer * inner, if both are what a matrix may have, else -1.
constexpr long long product(long long outer, long long inner)
{
    const bool fit = outer >= 0 && outer <= MAX_INT && inner >= 0 && inner <= MAX_INT;
    return fit ? outer * inner : -1;
}

""",
    "DIVIDED": "    if (matrix.inner < 1 || matrix.rows % matrix.inner != 0) return false;\n",
}

# One array that may be read and written.
INPLACE = """
                && !(array.together && other.together && array.address == other.address)"""

LOOK = """\
// The place of a plan's build in that table; -1 if this file has none.
constexpr int build_of(const Plan& plan, Dtype dtype)
{
    int place = 0;
    for (const Build& build : builds) {
        bool same = build.kernel == plan.kernel && build.dtype == dtype;
        int at = 0;
        for (const long long macro : build.macros) same = same && macro == plan.macros[at++];
        if (same) return place;
        ++place;
    }
    return -1;
}
"""

ZEROS = """\
namespace NAME_parts { struct Lender; }

// Memory of the GPU that calls on one stream use one after the other.
class NAME_zeros {
public:
    // Fills so many bytes with zeros on the stream, and keeps them for calls on it. Nobody else may
    // use them until those are done. Not while the stream is being captured.
    cudaError_t prepare(void* memory, size_t bytes, cudaStream_t stream);

private:
    friend struct NAME_parts::Lender;  // of a launch
    void* memory_ = nullptr;
    size_t bytes_ = 0;
    cudaStream_t stream_ = nullptr;
    unsigned long long number_ = 0;  // of the stream: a later one may have its handle
    int device_ = -1;
};

"""

LENDER = """\
struct Lender {
    // The memory of `zeros`, if it is enough and belongs to the stream. One that is captured may
    // not be asked for its number.
    static cudaError_t lend(const NAME_zeros& zeros, const Plan& plan, int device,
                            cudaStream_t stream, void** memory)
    {
        if (!zeros.memory_ || zeros.bytes_ < static_cast<size_t>(plan.workspace))
            return cudaErrorInvalidValue;
        if (zeros.stream_ != stream || zeros.device_ != device)
            return cudaErrorInvalidResourceHandle;
        cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
        if (const cudaError_t error = cudaStreamIsCapturing(stream, &capture)) return error;
        unsigned long long number = zeros.number_;
        if (capture == cudaStreamCaptureStatusNone)
            if (const cudaError_t error = cudaStreamGetId(stream, &number)) return error;
        if (number != zeros.number_) return cudaErrorInvalidResourceHandle;
        *memory = zeros.memory_;
        return cudaSuccess;
    }
};

"""

TAKE = """\
        if (plan.workspace > 0)
            if (const cudaError_t error =
                    Lender::lend(zeros, plan, current.number, stream, &workspace))
                return error;
"""

BUILDS = """\
// ---- builds ------------------------------------------------------------------------------------

// This file includes itself once for each build: the text of a kernel, which stands at its end,
// compiled with other macros in a namespace of its own. So put nothing else into this file.
#ifdef __FILE_NAME__
#define UPPER_SELF __FILE_NAME__
#else
#define UPPER_SELF "FILENAME"  // another name must be put here
#endif
#define SOFTMAX_WORKLOG_TEXT
"""

LAUNCH = """\
// ---- launch ------------------------------------------------------------------------------------

namespace NAME_parts {

const void* const functions[] = {
FUNCTIONS
};
constexpr int build_count = sizeof(functions) / sizeof(functions[0]);

// Functions and what they keep are this file's own: another library of the process may have other
// builds under the same name.

// What is asked of a device once.
struct Device {
    Gpu gpu = {};
    bool known = false, cooperates = false;
    bool ready[build_count] = {};  // attributes are set
};

static std::mutex mutex;

static Device& device_of(int number)
{
    static std::map<int, Device> devices;
    return devices[number];
}

static cudaError_t query(Device& device, int number)
{
    int sms = 0, l2 = 0, major = 0, minor = 0, shared = 0, cooperates = 0;
    const struct { int* value; cudaDeviceAttr attribute; } asked[] = {
        {&sms, cudaDevAttrMultiProcessorCount},
        {&l2, cudaDevAttrL2CacheSize},
        {&major, cudaDevAttrComputeCapabilityMajor},
        {&minor, cudaDevAttrComputeCapabilityMinor},
        {&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin},
        {&cooperates, cudaDevAttrCooperativeLaunch},
    };
    for (const auto& one : asked)
        if (const cudaError_t error = cudaDeviceGetAttribute(one.value, one.attribute, number))
            return error;
    if (sms < 1 || l2 < 1) return cudaErrorNotSupported;  // plans divide by both
    device.gpu = {sms, l2, 10 * major + minor, shared};
    device.cooperates = cooperates != 0;
    device.known = true;
    return cudaSuccess;
}

// What CUDA must be asked for before a build's first launch on a device.
static cudaError_t set_attributes(Device& device, int build, const Plan& plan)
{
    const void* function = functions[build];
    cudaFuncAttributes kernel;
    if (const cudaError_t error = cudaFuncGetAttributes(&kernel, function)) return error;
    // All that is left: what a build asks for may differ between its shapes.
    const auto most = device.gpu.max_shared - static_cast<long long>(kernel.sharedSizeBytes);
    if (plan.shared > 0)
        if (const cudaError_t error = cudaFuncSetAttribute(
                function, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(most)))
            return error;
    if (plan.cluster > 8)  // more than every GPU with clusters has
        if (const cudaError_t error = cudaFuncSetAttribute(
                function, cudaFuncAttributeNonPortableClusterSizeAllowed, 1))
            return error;
    device.ready[build] = true;
    return cudaSuccess;
}

// Whether all blocks of a plan may run at once, as those of a cooperative launch must.
static cudaError_t fits_at_once(const Device& device, int build, const Plan& plan)
{
    int blocks = 0;  // of a multiprocessor
    if (const cudaError_t error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(
            &blocks, functions[build], static_cast<int>(plan.block),
            static_cast<size_t>(plan.shared)))
        return error;
    const bool fits = device.cooperates && plan.grid <= blocks * device.gpu.sms;
    return fits ? cudaSuccess : cudaErrorCooperativeLaunchTooLarge;
}

// The current device as far as it is known, under a lock.
struct CurrentDevice {
    std::unique_lock<std::mutex> lock;
    Device* device = nullptr;
    int number = -1;
    cudaError_t error = cudaSuccess;

    CurrentDevice()
    {
        error = cudaGetDevice(&number);
        if (error) return;
        lock = std::unique_lock<std::mutex>(mutex);
        device = &device_of(number);
        if (!device->known) error = query(*device, number);
    }
};

// How far behind a multiple of 16 bytes an address is.
static long long start(const void* address)
{
    return static_cast<long long>(reinterpret_cast<std::uintptr_t>(address) % 16);
}

// What a call was given beside the sizes of its matrix.
struct Given {
MEMBERS
};

// Rows of an array that was given.
struct Array {
    const void* address;
    long long rows, cols, stride, size;  // size: bytes of an element
    long long align;                     // what the address is a multiple of
    bool output;TOGETHER

    std::uintptr_t first() const { return reinterpret_cast<std::uintptr_t>(address); }
    std::uintptr_t end() const
    {
        return first() + static_cast<std::uintptr_t>(((rows - 1) * stride + cols) * size);
    }
};

// Whether two have a byte in common, or one lies between the rows of the other.
static bool overlap(const Array& one, const Array& other)
{
    return one.first() < other.end() && other.first() < one.end();
}

// What holds for the arrays of a call, whatever its kernel: they start where they must, and none
// that is written overlaps another.
template <int count>
static cudaError_t fit(const Array (&arrays)[count])
{
    for (const Array& array : arrays)
        if (start(array.address) % array.align != 0) return cudaErrorMisalignedAddress;
    for (const Array& array : arrays)
        for (const Array& other : arrays)
            if (array.output && &array != &other && overlap(array, other)ALLOWED)
                return cudaErrorInvalidValue;
    return cudaSuccess;
}

LENDERstatic cudaError_t launch(Matrix matrix, Given given, ZEROScudaStream_t stream)
{
    const bool empty = EMPTY;
    if (empty && matrix.rows >= 0 && matrix.cols >= 0) return cudaSuccess;
    if (NULLS) return cudaErrorInvalidValue;
CHECKS    matrix.x_start = start(given.FIRST);
    matrix.y_start = start(given.LAST);
    int build = -1;
NONE    Plan plan;
    {
        CurrentDevice current;
        if (current.error) return current.error;
        Device& device = *current.device;
        plan = planned(matrix, device.gpu);
        if (plan.error) return plan.error;
        build = build_of(plan, matrix.dtype);
        if (build < 0) return cudaErrorNotSupported;
        const Array arrays[] = {
ARRAYS
        };
        if (const cudaError_t error = fit(arrays)) return error;
        if (!device.ready[build])
            if (const cudaError_t error = set_attributes(device, build, plan)) return error;
        if (plan.cooperative)
            if (const cudaError_t error = fits_at_once(device, build, plan)) return error;
TAKE    }

    cudaLaunchAttribute attributes[2] = {};
    unsigned count = 0;
    if (plan.programmatic) {
        attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attributes[count++].val.programmaticStreamSerializationAllowed = 1;
    }
    if (plan.cooperative) {
        attributes[count].id = cudaLaunchAttributeCooperative;
        attributes[count++].val.cooperative = 1;
    }
    cudaLaunchConfig_t config = {};  // the cluster's size is the kernel's own
    config.gridDim = dim3(static_cast<unsigned>(plan.grid));
    config.blockDim = dim3(static_cast<unsigned>(plan.block));
    config.dynamicSmemBytes = static_cast<size_t>(plan.shared);
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = count;
TAKEN
    return cudaLaunchKernelExC(&config, functions[build], LIST);
}

}  // namespace NAME_parts
"""

CALL = """\
OPENING
{
    using namespace NAME_parts;
    constexpr Dtype dtype = Dtype::DTYPE;
    const Matrix matrix = {dtype, bytes_of(dtype), MATRIX, 0, 0AXIS};
    return launch(matrix, {VALUES}, REST);
}
"""

WORKSPACE = """\
// Bytes that any call with these sizes may want on the current device; 0 if none does.
OPENING
{
    using namespace NAME_parts;
    CurrentDevice current;
    if (current.error) return 0;
    long long bytes = 0;
    for (const Dtype dtype : {LISTED}) {
        const long long size = bytes_of(dtype);
        for (const long long x_start : {0LL, size})
            for (const long long y_start : {0LL, size}) {
                const Plan plan =
                    planned({dtype, size, MATRIX, x_start, y_startAXIS},
                            current.device->gpu);
                if (plan.error == cudaSuccess) bytes = greater(bytes, plan.workspace);
            }
    }
    return static_cast<size_t>(bytes);
}

cudaError_t NAME_zeros::prepare(void* memory, size_t bytes, cudaStream_t stream)
{
    memory_ = nullptr;
    if (!memory || reinterpret_cast<std::uintptr_t>(memory) % 8 != 0) return cudaErrorInvalidValue;
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    if (const cudaError_t error = cudaStreamIsCapturing(stream, &capture)) return error;
    if (capture != cudaStreamCaptureStatusNone) return cudaErrorStreamCaptureUnsupported;
    if (const cudaError_t error = cudaGetDevice(&device_)) return error;
    if (const cudaError_t error = cudaStreamGetId(stream, &number_)) return error;
    if (const cudaError_t error = cudaMemsetAsync(memory, 0, bytes, stream)) return error;
    bytes_ = bytes;
    stream_ = stream;
    memory_ = memory;
    return cudaSuccess;
}
"""
