// ${licence}
// ${copyright}

/*
${name}(${parameters}, ...): ${operation}, for arrays in GPU memory.
For ${shapes}: ${count}.
The comment at the head of each kernel below defines result and arguments.

${origin}
The plan was tuned on an ${tuned_on}.

Compile this file once, on its own, and link it to its callers. Do not add code to it: it includes
itself.

    ${compile}

-ftz=true flushes denormal numbers to 0; without it the machine code is not the one that was
measured. Requires CUDA 12.0 or newer. Other files define ${upper}_DECLARATIONS and include this
file, or declare:

    ${declared}

Sizes are in elements. A call enqueues one launch on the stream, allocates nothing, and can be
captured in a graph. For an empty matrix it returns cudaSuccess without a launch. Other errors:

    cudaErrorInvalidValue: a pointer is null, an output overlaps another array, the workspace
        is too small, or the kernel does not accept these sizes or numbers
    cudaErrorMisalignedAddress: an array is not aligned as the kernel requires
    cudaErrorNotSupported: this file has no specialisation for these sizes on this GPU
    cudaErrorNoKernelImageForDevice: the GPU is too old
    cudaErrorCooperativeLaunchTooLarge: the GPU cannot hold all blocks at once  // [cooperative]

Some launches need a workspace, GPU memory that is zero before and after each:  // [workspace]

    const size_t bytes = ${name}_workspace(${sizes});  // 0 if none is needed
    if (bytes) cudaMalloc(&workspace, bytes), cudaMemset(workspace, 0, bytes);
    ${name}(${parameters}, workspace, bytes, stream);

Launches that may run at the same time, on other streams or in graphs, need one  // [workspace]
each. Zero it again after a launch that was aborted.  // [workspace]
*/

#ifndef SOFTMAX_WORKLOG_TEXT  // else this file, or one like it, includes itself
#ifndef ${upper}_FILE
#define ${upper}_FILE

${includes}

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

#undef min  // macros of windows.h; plans have functions of these names
#undef max

namespace ${name}_parts {

// ---- plan: the specialisation for a matrix, and its launch --------------------------------------

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wparentheses"  // && within ||, as headers have it
#pragma GCC diagnostic ignored "-Wshadow"

enum class Dtype { ${dtypes} };
enum class Kernel { ${kernels} };

struct Matrix {
    Dtype dtype;
    long long size;                // bytes per element
    long long rows, cols;
    long long x_stride, y_stride;  // elements from one row to the next
    long long x_start, y_start;    // addresses modulo 16
    long long inner = 1;           // stride of the elements of a row  // [axis]
};

struct Gpu {
    long long sms, l2;      // streaming multiprocessors, bytes of L2 cache
    long long capability;   // 90 for 9.0
    long long max_shared;   // shared memory per block, in bytes
};

struct Plan {
    cudaError_t error = cudaErrorInvalidValue;  // cudaSuccess if the kernel accepts the matrix
    Kernel kernel = {};
    long long macros[${most}] = {};  // in the order of the Build table
    long long block = 0, grid = 0;
    long long shared = 0, workspace = 0;  // bytes
    long long cluster = 1;
    bool cooperative = false, strided = false;
    ${values}  // [values]
};

struct Specialisation {
    Kernel kernel;
    Dtype dtype;
    long long macros[${most}];
};

// A number in the rules of a header. Division by 0 or of a negative number is not defined.
struct Number {
    long long value;
    bool defined;

    constexpr Number(long long value, bool defined = true) : value(value), defined(defined) {}
    explicit constexpr operator bool() const { return defined && value != 0; }
};

#define NUMBER_OPERATOR(sign, condition)                                                        \
    constexpr Number operator sign(Number a, Number b)                                          \
    {                                                                                           \
        const bool defined = a.defined && b.defined && (condition);                             \
        return {defined ? a.value sign b.value : 0, defined};                                   \
    }
NUMBER_OPERATOR(+, true)
NUMBER_OPERATOR(-, true)
NUMBER_OPERATOR(*, true)
NUMBER_OPERATOR(/, a.value >= 0 && b.value > 0)
NUMBER_OPERATOR(%, a.value >= 0 && b.value > 0)
NUMBER_OPERATOR(<, true)
NUMBER_OPERATOR(<=, true)
NUMBER_OPERATOR(>, true)
NUMBER_OPERATOR(>=, true)
NUMBER_OPERATOR(==, true)
NUMBER_OPERATOR(!=, true)
#undef NUMBER_OPERATOR

// As in C, b does not matter where a decides.
constexpr Number operator&&(Number a, Number b)
{
    return a.defined && a.value != 0 ? Number(b.value != 0, b.defined) : Number(0, a.defined);
}
constexpr Number operator||(Number a, Number b)
{
    return a.defined && a.value == 0 ? Number(b.value != 0, b.defined) : Number(1, a.defined);
}

// The value of the first case that holds; the last value needs no condition.
constexpr Number pick() { return {0, false}; }
constexpr Number pick(Number last) { return last; }
template <class... More>
constexpr Number pick(Number when, Number value, More... more)
{
    return !when.defined ? when : when ? value : pick(more...);
}

constexpr Number min(Number a, Number b) { return pick(a < b, a, b); }
constexpr Number max(Number a, Number b) { return pick(a < b, b, a); }
constexpr Number ceil_div(Number number, Number by) { return (number + by - 1) / by; }

// The smallest power of two that is at least the number.
constexpr Number power_of_two(Number number)
{
    long long power = 1;
    while (power < number.value) power *= 2;
    return {power, number.defined};
}

// Whether all of them are.
template <class... Numbers>
constexpr bool defined(Numbers... numbers)
{
    return (numbers.defined && ...);
}

// What the rules read.
struct Problem {
    Matrix matrix;
    Gpu gpu;
    Number rows = matrix.rows, cols = matrix.cols, dim = matrix.cols;
    Number inner = matrix.inner;  // [axis]
    Number inner = 1;  // [not axis]
    Number outer = rows / inner;
    Number size = matrix.size, row = cols * size;
    Number x_stride = matrix.x_stride, y_stride = matrix.y_stride;
    Number x_start = matrix.x_start, y_start = matrix.y_start;
    Number sms = gpu.sms, l2 = gpu.l2, capability = gpu.capability, maxShared = gpu.max_shared;
    Number isContiguous = rows == 1 || (x_stride == cols && y_stride == cols);
    Number isAlike = x_start == y_start, alike = isAlike;
    Number packs = isContiguous && row % 16 == 0 && x_start == 0 && y_start == 0;
};

constexpr Plan refused(Plan plan, cudaError_t error)
{
    plan.error = error;
    return plan;
}

// Marks a plan as accepted unless a macro is out of the range of int.
constexpr Plan accepted(Plan plan)
{
    for (const long long macro : plan.macros)
        if (macro < 0 || macro > 2147483647) return plan;
    plan.error = cudaSuccess;
    return plan;
}

// Replaces a plan; returns whether the new one accepts the matrix.  // [best]
constexpr bool use(Plan& plan, const Plan& other)
{
    plan = other;
    return plan.error == cudaSuccess;
}

// outer * inner, or -1 if one of them is invalid.  // [axis]
constexpr long long product(long long outer, long long inner)
{
    const bool fit = outer >= 0 && outer <= 2147483647 && inner >= 0 && inner <= 2147483647;
    return fit ? outer * inner : -1;
}

// The requirements of every kernel: sizes fit an int, rows do not overlap, and the matrix fits in
// the address space, so that products in plans fit 64 bits.
constexpr bool checked(const Matrix& matrix)
{
    if (matrix.rows < 1 || matrix.rows > 2147483647) return false;
    if (matrix.cols < 1 || matrix.cols > 2147483647) return false;
    const long long most = 144115188075855872 / matrix.size / matrix.rows;
    if (matrix.inner < 1 || matrix.rows % matrix.inner != 0) return false;  // [axis]
    return matrix.x_stride >= matrix.cols && matrix.x_stride <= most
        && matrix.y_stride >= matrix.cols && matrix.y_stride <= most;
}

// Values of Build tables that replace those of the rules; -1 is none.  // [tuned]
struct Changes {
    ${changes}  // [changes]
};

${plans}
// Where tuning on an NVIDIA H200 found a faster plan than the rules.  // [tuned]
struct Tuned {
    Kernel rule;          // whose plan is replaced
    long long size;       // bytes per element
    bool whole;           // whether rows are whole packs of 16 bytes
    long long first_cols, last_cols, first_rows, last_rows;
    Plan (*plan)(const Problem&, const Changes&);
    Changes given;
};

template <class Rules>  // [tuned]
constexpr Plan plan_by(const Problem& problem, const Changes& given)  // [tuned]
{
    return Rules{problem}.plan(given);
}

constexpr Tuned tuned[] = {  // [tuned]
    ${tuned}
};

constexpr Plan faster(const Plan& rule, const Problem& problem)  // [tuned]
{
    const Matrix& matrix = problem.matrix;
    const Gpu& gpu = problem.gpu;
    const bool same = gpu.sms == ${sms} && gpu.l2 == ${l2} && gpu.capability == ${capability};
    const bool aligned = matrix.x_start == 0 && matrix.y_start == 0;
    if (!same || !aligned || !problem.isContiguous) return rule;
    for (const Tuned& one : tuned) {
        if (one.rule != rule.kernel || one.size != matrix.size) continue;
        if (one.whole != bool(problem.packs)) continue;
        if (matrix.cols < one.first_cols || matrix.cols > one.last_cols) continue;
        if (matrix.rows < one.first_rows || matrix.rows > one.last_rows) continue;
        const Plan plan = one.plan(problem, one.given);
        if (plan.error == cudaSuccess) return plan;
    }
    return rule;
}

${choice}
// The plan of a matrix on a GPU.
constexpr Plan planned(const Matrix& matrix, const Gpu& gpu)
{
    return checked(matrix) ? ${rules}{{matrix, gpu}}.plan() : Plan{};
}

#pragma GCC diagnostic pop

// The specialisations in this file, by the macros of their Build tables.
constexpr Specialisation specialisations[] = {
    ${specialisations}
};

// The index of the specialisation for a plan; -1 if this file has none.
constexpr int index_of(const Plan& plan, Dtype dtype)
{
    int index = 0;
    for (const Specialisation& one : specialisations) {
        bool same = one.kernel == plan.kernel && one.dtype == dtype;
        int at = 0;
        for (const long long macro : one.macros) same = same && macro == plan.macros[at++];
        if (same) return index;
        ++index;
    }
    return -1;
}

}  // namespace ${name}_parts

${declarations}

#if defined(__CUDACC__) && !defined(${upper}_DECLARATIONS)

// ---- specialisations ---------------------------------------------------------------------------

// This file includes itself once per specialisation: the text of a kernel, at the end of the file,
// is compiled with other macros in a namespace of its own. So do not add code to this file.
#ifdef __FILE_NAME__
#define ${upper}_SELF __FILE_NAME__
#else
#define ${upper}_SELF "${filename}"  // change it if you rename the file
#endif
#define SOFTMAX_WORKLOG_TEXT
#pragma nv_diagnostic push
#pragma nv_diag_suppress 177  // a kernel need not use all constants of the files that it includes

${included}
#pragma nv_diagnostic pop
#undef SOFTMAX_WORKLOG_TEXT

// ---- launch ------------------------------------------------------------------------------------

namespace ${name}_parts {

const void* const functions[] = {
    ${functions}
};
constexpr int function_count = sizeof(functions) / sizeof(functions[0]);  // [limits]

// Functions with state are static, because another library in the process may contain other
// specialisations under the same name.

struct Device {
    Gpu gpu = {};
    bool ready[function_count] = {};  // whether attributes are set  // [limits]
};

static std::mutex mutex;  // locked while a device is used

// Finds the current device, whose properties are queried once.
static cudaError_t current_device(Device*& device)
{
    static std::map<int, Device> devices;
    int number = -1, sms = 0, l2 = 0, major = 0, minor = 0, shared = 0;
    if (const cudaError_t error = cudaGetDevice(&number)) return error;
    device = &devices[number];
    if (device->gpu.sms > 0) return cudaSuccess;
    const struct { int* value; cudaDeviceAttr attribute; } properties[] = {
        {&sms, cudaDevAttrMultiProcessorCount},
        {&l2, cudaDevAttrL2CacheSize},
        {&major, cudaDevAttrComputeCapabilityMajor},
        {&minor, cudaDevAttrComputeCapabilityMinor},
        {&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin},
    };
    for (const auto& one : properties)
        if (const cudaError_t error = cudaDeviceGetAttribute(one.value, one.attribute, number))
            return error;
    if (sms < 1 || l2 < 1) return cudaErrorNotSupported;  // plans divide by both
    device->gpu = {sms, l2, 10 * major + minor, shared};
    return cudaSuccess;
}

// Sets the attributes that a specialisation needs before its first launch on a device.  // [limits]
static cudaError_t set_attributes(Device& device, int index, const Plan& plan)
{
    const void* function = functions[index];
    cudaFuncAttributes kernel;
    if (const cudaError_t error = cudaFuncGetAttributes(&kernel, function)) return error;
    // The maximum, because the shapes of a specialisation may need different amounts.
    const auto most = device.gpu.max_shared - static_cast<long long>(kernel.sharedSizeBytes);
    if (plan.shared > 0)
        if (const cudaError_t error = cudaFuncSetAttribute(
                function, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(most)))
            return error;
    if (plan.cluster > 8)  // beyond the portable cluster size
        if (const cudaError_t error = cudaFuncSetAttribute(
                function, cudaFuncAttributeNonPortableClusterSizeAllowed, 1))
            return error;
    device.ready[index] = true;
    return cudaSuccess;
}

// An address modulo 16 bytes.
static long long start(const void* address)
{
    return static_cast<long long>(reinterpret_cast<std::uintptr_t>(address) % 16);
}

// The arguments of a call other than sizes.
struct Given {
    ${members}
};

// An array argument.
struct Array {
    const void* address;
    long long bytes;  // from the first element to the last, gaps between rows included
    long long align;  // required alignment in bytes
    bool output;
    bool together;  // one of the two that may be the same array  // [inplace]
};

// Checks that the arrays of a call are aligned and that no output overlaps another array.
template <int count>
static cudaError_t check_arrays(const Array (&arrays)[count])
{
    for (const Array& array : arrays)
        if (start(array.address) % array.align != 0) return cudaErrorMisalignedAddress;
    for (const Array& array : arrays)
        for (const Array& other : arrays) {
            if (array.together && other.together && array.address == other.address)  // [inplace]
                continue;  // [inplace]
            const auto first = static_cast<const char*>(array.address);
            const auto second = static_cast<const char*>(other.address);
            const bool apart = first + array.bytes <= second || second + other.bytes <= first;
            if (array.output && &array != &other && !apart) return cudaErrorInvalidValue;
        }
    return cudaSuccess;
}

static cudaError_t launch(
    Matrix matrix, Given given, ${more})
{
    const bool empty = ${empty};
    if (empty && matrix.rows >= 0 && matrix.cols >= 0) return cudaSuccess;
    if (${nulls}) return cudaErrorInvalidValue;
    ${checks}  // [checks]
    matrix.x_start = start(given.${first});
    matrix.y_start = start(given.${last});
    int index = -1;
    Plan plan;
    {
        const std::lock_guard<std::mutex> lock(mutex);
        Device* device = nullptr;
        if (const cudaError_t error = current_device(device)) return error;
        plan = planned(matrix, device->gpu);
        if (plan.error) return plan.error;
        index = index_of(plan, matrix.dtype);
        if (index < 0) return cudaErrorNotSupported;
        const Array arrays[] = {
            ${arrays}
        };
        if (const cudaError_t error = check_arrays(arrays)) return error;
        if (!device->ready[index])  // [limits]
            if (const cudaError_t error = set_attributes(*device, index, plan)) return error;
        if (plan.workspace > 0)  // [workspace]
            if (!workspace || bytes < static_cast<size_t>(plan.workspace) || start(workspace) % 8)
                return cudaErrorInvalidValue;
    }

    cudaLaunchConfig_t config = {};  // the kernel itself declares its cluster size
    config.gridDim = dim3(static_cast<unsigned>(plan.grid));
    config.blockDim = dim3(static_cast<unsigned>(plan.block));
    config.dynamicSmemBytes = static_cast<size_t>(plan.shared);
    config.stream = stream;
    cudaLaunchAttribute cooperative = {};  // [cooperative]
    cooperative.id = cudaLaunchAttributeCooperative;  // [cooperative]
    cooperative.val.cooperative = 1;  // [cooperative]
    config.attrs = &cooperative;  // [cooperative]
    config.numAttrs = plan.cooperative;  // [cooperative]
    long long outer = matrix.rows / matrix.inner;  // [axis]
    // The kernel reads the lower half of a size as an int.
    ${taken}
    return cudaLaunchKernelExC(&config, functions[index], ${list});
}

}  // namespace ${name}_parts

${calls}
// The bytes of workspace that calls with these sizes need on the current device.  // [workspace]
${workspace}
{
    using namespace ${name}_parts;
    const std::lock_guard<std::mutex> lock(mutex);
    Device* device = nullptr;
    if (current_device(device)) return 0;
    long long bytes = 0;
    for (Matrix matrix : {${matrices}})
        for (const long long x_start : {0LL, matrix.size})
            for (const long long y_start : {0LL, matrix.size}) {
                matrix.x_start = x_start;
                matrix.y_start = y_start;
                const Plan plan = planned(matrix, device->gpu);
                if (plan.error == cudaSuccess && plan.workspace > bytes) bytes = plan.workspace;
            }
    return static_cast<size_t>(bytes);
}

#endif  // what nvcc compiles, once
#endif  // ${upper}_FILE

${texts}
#endif
