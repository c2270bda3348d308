# Prints, as C, the modules that CPython imports from files before it runs anything, and, in the last line, the flags of the compiler.
import encodings.aliases, encodings.ascii, encodings.latin_1, encodings.utf_8
import marshal, os, sysconfig

table = []
for module in (encodings, encodings.aliases, encodings.ascii, encodings.latin_1, encodings.utf_8):
    with open(module.__file__) as source:
        code = marshal.dumps(compile(source.read(), module.__name__, "exec"))
    name = module.__name__.replace(".", "_")
    print("static const unsigned char %s[] = {%s};" % (name, ",".join(map(str, code))))
    table.append('{"%s", %s, sizeof %s, %d}' % (module.__name__, name, name, hasattr(module, "__path__")))
print("static const struct _frozen frozen[] = {%s, {0}};" % ", ".join(table))
print("// -I%s %s" % (sysconfig.get_config_var("INCLUDEPY"), os.path.join(sysconfig.get_config_var("LIBPL"), sysconfig.get_config_var("LIBRARY"))))
