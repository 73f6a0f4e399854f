# What the libraries link: read by this build and by find_package(trainer).
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS CXX)
find_package(MPI REQUIRED COMPONENTS CXX)
find_package(PkgConfig REQUIRED)
pkg_check_modules(SENTENCEPIECE REQUIRED IMPORTED_TARGET sentencepiece)
pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(UTF8PROC REQUIRED IMPORTED_TARGET libutf8proc)
pkg_check_modules(CBC REQUIRED IMPORTED_TARGET cbc)
# CUDA is for builds that find its toolkit (CMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit leaves it out). Its libraries are
# linked dynamically; a program that has them starts on machines without a driver too.
find_package(CUDAToolkit QUIET)
if(CUDAToolkit_FOUND)
  find_package(NCCL QUIET)
  find_package(CUDNN 9.16 QUIET)
endif()
