package mount

import (
	"path"
	"strings"

	"sigmaos.dev/sigma"
)

// The kernel follows what Readlink answers, with the rights of whoever follows it, from wherever it
// believes the link to be. A tenant chooses targets. So the kernel is never told to climb: a target
// that only descends is answered as it is, and every other one is resolved here to an absolute path
// below the mount without a "..". Both stay below the mount wherever the link is, and whatever is
// renamed between Readlink and the kernel's walk.

// inward is what is stored for a link that a program makes: a target in the mount by its path in
// the realm, others as they are.
func (m *Mount) inward(target string) string {
	if m.cfg.TrustLinks {
		return target
	}
	if rest, ok := strings.CutPrefix(target, m.cfg.Dir); ok && (rest == "" || rest[0] == '/') {
		return m.pathOf(rest)
	}
	return target
}

// outward is the target that Linux sees of a link at place, a path in the mount without a slash at
// its start: one that only descends from the link's directory, or the absolute path below the mount
// of where the link leads in the realm. With TrustLinks it is target itself.
func (m *Mount) outward(place, target string) (string, error) {
	const op = "mount.outward"
	if strings.IndexByte(target, 0) >= 0 { // the kernel would follow what is before it
		return "", sigma.Errorf(op, sigma.KindInvalid, "the server gave a link's target with a NUL byte")
	}
	if m.cfg.TrustLinks || descends(target) {
		return target, nil
	}
	leaves := &sigma.Error{Op: op, Path: target, Kind: sigma.KindPermission,
		Msg: "the link leads out of what is mounted"}
	if !strings.HasPrefix(target, "/") {
		below := path.Join(path.Dir(place), target) // relative, so that what climbs out of the mount shows
		if !descends(below) {
			return "", leaves
		}
		return path.Join(m.cfg.Dir, below), nil
	}
	root, to := sigma.JoinPath(m.names...), path.Clean(target)
	if root == "/" {
		return path.Join(m.cfg.Dir, to), nil
	}
	if rest, ok := strings.CutPrefix(to, root); ok && (rest == "" || rest[0] == '/') {
		return path.Join(m.cfg.Dir, rest), nil
	}
	return "", leaves
}

// descends says that a target is relative and has no "..": followed from any directory it stays
// below that.
func descends(target string) bool {
	if strings.HasPrefix(target, "/") {
		return false
	}
	for name := range strings.SplitSeq(target, "/") {
		if name == ".." {
			return false
		}
	}
	return true
}
