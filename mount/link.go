package mount

import (
	"path"
	"strings"

	"sigmaos.dev/sigma"
)

// Links in a realm are a realm's: an absolute target begins at the realm's root, which is a directory here. The kernel follows what Readlink says, with the rights of whoever follows it, so a target that a
// tenant chose must not lead to the host's files.

// inward is what is stored for a link that a program makes: a target in the mount by its path in the realm, others as they are.
func (m *Mount) inward(target string) string {
	if rest, ok := strings.CutPrefix(target, m.cfg.Dir); ok && (rest == "" || rest[0] == '/') {
		return m.pathOf(rest)
	}
	return target
}

// outward is the target that Linux sees of a link at place: below the mount, wherever it leads in the realm. A target outside of what is mounted has no path here.
func (m *Mount) outward(place, target string) (string, error) {
	if strings.HasPrefix(target, "/") {
		root := sigma.JoinPath(m.names...)
		to := path.Clean(target)
		if root == "/" {
			return path.Join(m.cfg.Dir, to), nil
		}
		if rest, ok := strings.CutPrefix(to, root); ok && (rest == "" || rest[0] == '/') {
			return path.Join(m.cfg.Dir, rest), nil
		}
		return "", &sigma.Error{Op: "mount.outward", Path: target, Kind: sigma.KindPermission, Msg: "the link leads out of what is mounted"}
	}
	up, later := climbs(target)
	if up == 0 && !later {
		return target, nil
	}
	clean := path.Clean(target)
	if up, _ = climbs(clean); up > strings.Count(place, "/") {
		return "", &sigma.Error{Op: "mount.outward", Path: target, Kind: sigma.KindPermission, Msg: "the link leads out of what is mounted"}
	}
	if later { // the kernel goes up from where it is, which is below the link's own directory only for the dots that a target begins with
		return clean, nil
	}
	return target, nil
}

// climbs counts the components by which a relative target goes up before it goes down, and says whether it goes up again later.
func climbs(target string) (up int, later bool) {
	down := false
	for name := range strings.SplitSeq(target, "/") {
		switch name {
		case "..":
			if down {
				return up, true
			}
			up++
		case "", ".":
		default:
			down = true
		}
	}
	return up, false
}
