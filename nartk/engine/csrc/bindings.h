// What the files of the extension module share: arrays of Python, and a model as Python holds it.
#pragma once
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstring>
#include <optional>

#include "engine.h"
#include "weights.h"

namespace nartk {

namespace py = pybind11;

using Ints = py::array_t<int32_t, py::array::c_style | py::array::forcecast>;
using Floats = py::array_t<float, py::array::c_style | py::array::forcecast>;
using Doubles = py::array_t<double, py::array::c_style | py::array::forcecast>;

// NumPy's array of any sequence; none of what has no array. `ensure` would swallow an interrupt with the rest.
template <class Array>
std::optional<Array> array_of(const py::object& from) {
    try {
        return Array(from);
    } catch (const py::error_already_set& error) {
        if (!error.matches(PyExc_ValueError) && !error.matches(PyExc_TypeError)) throw;
        return std::nullopt;
    }
}

// Whole numbers that 32 bits hold, such as handles, from any sequence.
inline Ints ints(const py::object& from) {
    const auto found = array_of<py::array>(from);
    if (!found || found->ndim() != 1) throw PassFault("handles, lengths and words are lists of whole numbers");
    const py::array& any = *found;
    if (py::isinstance<Ints>(any)) return Ints(any);
    if (any.size() == 0) return Ints(0);
    if (!std::strchr("iub", any.dtype().kind()))
        throw PassFault("handles, lengths and words are whole numbers of at most 32 bits");
    const py::array_t<int64_t, py::array::c_style | py::array::forcecast> wide(any);
    Ints made(wide.size());
    for (py::ssize_t i = 0; i < wide.size(); i++) {
        const int64_t value = wide.data()[i];
        if (value != (int32_t)value) throw PassFault(number(value) + " is no number of 32 bits");
        made.mutable_data()[i] = (int32_t)value;
    }
    return made;
}

// An array that must be [count] of its type already; count -1: of any length.
template <class Array>
Array column(const py::object& from, const char* name, py::ssize_t count) {
    using Any = py::array_t<typename Array::value_type, 0>;  // laid out anyhow
    if (!py::isinstance<Any>(from) || from.cast<py::array>().ndim() != 1)
        throw PassFault("`" + std::string(name) + "` is no array of one dimension and of the type of the pass");
    const Array made(from);
    if (count >= 0 && made.size() != count)
        throw PassFault("`" + std::string(name) + "` has " + number(made.size()) + " numbers, not " + number(count));
    return made;
}

template <class Array>
std::optional<Array> maybe(const py::object& from, const char* name, py::ssize_t count) {
    if (from.is_none()) return std::nullopt;
    return column<Array>(from, name, count);
}

template <class T>
py::array_t<T> array(const std::vector<T>& values) {
    return py::array_t<T>((py::ssize_t)values.size(), values.data());
}

template <class T>
py::array_t<T> matrix(const std::vector<T>& values, py::ssize_t columns) {
    return py::array_t<T>({columns ? (py::ssize_t)values.size() / columns : 0, columns}, values.data());
}

inline void require(bool holds, const char* what) {
    if (!holds) throw py::value_error(what);
}

inline const Kernels& kernels_of(const std::string& isa) {
    const Kernels* found = kernels_for(isa.c_str());
    if (!found) throw py::value_error("this build and processor have no instruction set " + isa);
    return *found;
}

// A packed layer, with the memory that it points into.
struct Layered {
    std::shared_ptr<Packed> packed;
    std::shared_ptr<py::buffer_info> keep;
};

// A network from nested dictionaries, and the objects that it points into.
struct Model {
    std::shared_ptr<Network> network;
    std::vector<py::object> keep;
};

void bind_model(py::module_& m);    // the classes `Linear` and `Model`
void bind_vocoder(py::module_& m);  // the class `Vocoder`

}  // namespace nartk
