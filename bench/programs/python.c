// CPython, linked statically, so that it runs where there are no files. The modules that it needs before the first line of a script are in frozen.h, which python.py makes. It prints the
// monotonic clock, in ns, at the first line of its script.
#include <Python.h>
#include "frozen.h"

static int set(PyConfig *c, wchar_t **field, const wchar_t *value)
{
	return PyStatus_Exception(PyConfig_SetString(c, field, value));
}

int main(void)
{
	PyPreConfig first;
	PyConfig c;

	PyImport_FrozenModules = frozen;
	PyPreConfig_InitIsolatedConfig(&first);
	first.utf8_mode = 1;
	if (PyStatus_Exception(Py_PreInitialize(&first)))
		return 3;
	PyConfig_InitIsolatedConfig(&c);
	c.site_import = 0;
	c.module_search_paths_set = 1;
	c.pathconfig_warnings = 0;
	c.write_bytecode = 0;
	if (set(&c, &c.executable, L"/python") || set(&c, &c.base_executable, L"/python") || set(&c, &c.prefix, L"/") || set(&c, &c.exec_prefix, L"/") ||
	    set(&c, &c.base_prefix, L"/") || set(&c, &c.base_exec_prefix, L"/"))
		return 4;
	PyStatus status = Py_InitializeFromConfig(&c);
	if (PyStatus_Exception(status))
		Py_ExitStatusException(status);
	int failed = PyRun_SimpleString("import time\nprint(time.clock_gettime_ns(time.CLOCK_MONOTONIC))");
	return Py_FinalizeEx() || failed;
}
