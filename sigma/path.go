package sigma

import "strings"

// Limits on names. A path is what a person writes; longer ones are mistakes or attacks.
const (
	NameMax = 255  // bytes of one component, as on Linux
	PathMax = 4096 // bytes of a whole path, as on Linux
	// DepthMax is how many directories deep mounts and commands that walk a tree go, which may have
	// no end. Trees of sources and of packages stay below a tenth of it.
	DepthMax = 256
)

// Names at the root of every realm's tree that the provider serves; no tenant can use them for
// something else.
const (
	NameUX   = "ux"   // scratch storage of each machine
	NameProc = "proc" // procs
	NameSys  = "sys"  // system calls and state
	NameS3   = "s3"   // the object store, an endpoint
	NameDB   = "db"   // SQL databases, an endpoint
)

// IsProvided says whether a name at the root of a realm's tree is one that the provider serves.
func IsProvided(name string) bool {
	return name == NameUX || name == NameProc || name == NameSys || name == NameS3 || name == NameDB
}

// Special components that a walk resolves (001 §3.3).
const (
	LocalName = "~local" // the entry of a directory of machines or endpoints that is on the caller's machine
	AnyName   = "~any"   // any live entry
)

// ParsePath splits an absolute path into its components. "/" has none. One trailing slash is
// allowed; an empty component, "." , "..", NUL, a name over NameMax or a path over PathMax is a
// KindInvalid error that says which it was.
func ParsePath(path string) ([]string, error) {
	bad := func(msg, hint string) ([]string, error) {
		return nil, &Error{Op: "sigma.ParsePath", Path: clip(path), Kind: KindInvalid, Msg: msg, Hint: hint}
	}
	switch {
	case len(path) > PathMax:
		return bad("path is longer than 4096 bytes", "")
	case path == "":
		return bad("path is empty", "paths start with /, as in /s3/in/a.txt")
	case path[0] != '/':
		return bad("path does not start with /", "paths are absolute, as in /s3/in/a.txt")
	case path == "/":
		return nil, nil
	}
	names := strings.Split(strings.TrimSuffix(path[1:], "/"), "/")
	for _, n := range names {
		if err := CheckName(n); err != nil {
			e := err.(*Error)
			return bad(e.Msg, e.Hint)
		}
	}
	return names, nil
}

// CheckNames is CheckName for each of names.
func CheckNames(op string, names []string) error {
	for _, n := range names {
		if err := CheckName(n); err != nil {
			return Wrap(op, "", err)
		}
	}
	return nil
}

// CheckName says whether n may be one component of a path; the error is of KindInvalid.
func CheckName(n string) error {
	msg, hint := "", ""
	switch {
	case n == "":
		msg, hint = "empty component in path", "write one / between names"
	case n == "." || n == "..":
		msg, hint = "path contains \""+n+"\"", "sigmaOS paths have no . and ..; write the path in full"
	case len(n) > NameMax:
		msg = "name is longer than 255 bytes"
	case strings.IndexByte(n, 0) >= 0:
		msg = "name contains a NUL byte"
	case strings.IndexByte(n, '/') >= 0:
		msg = "name contains a /"
	default:
		return nil
	}
	return &Error{Op: "sigma.CheckName", Kind: KindInvalid, Msg: msg, Hint: hint}
}

// JoinPath makes an absolute path of components.
func JoinPath(names ...string) string { return "/" + strings.Join(names, "/") }

func clip(s string) string {
	if len(s) > 200 {
		return s[:200] + "..."
	}
	return s
}
