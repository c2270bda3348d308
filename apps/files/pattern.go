package files

import (
	"context"
	"path"
	"slices"
	"strings"

	"sigmaos.dev/sigma"
)

// Patterns in realm paths. The shell expands patterns against this host's files, so those of the
// realm are expanded here: *, ? and [...] stand for a part of one name, as in a shell, and a
// backslash takes that meaning from the character after it. A pattern that matches nothing is taken
// literally if there is such a file, as shells do, and is an error otherwise.

// matchesMax bounds what one pattern may match, and with it the memory.
const matchesMax = 100_000

// isPattern says whether one name of a path has a character that stands for others.
func isPattern(name string) bool {
	for i := 0; i < len(name); i++ {
		switch name[i] {
		case '\\':
			i++
		case '*', '?':
			return true
		case '[':
			if strings.IndexByte(name[i:], ']') > 1 {
				return true
			}
		}
	}
	return false
}

// Unquoted takes the backslashes out that take a meaning from what follows.
func Unquoted(p string) string {
	if strings.IndexByte(p, '\\') < 0 {
		return p
	}
	var b strings.Builder
	for i := 0; i < len(p); i++ {
		if p[i] == '\\' && i+1 < len(p) && strings.IndexByte(`*?[]\`, p[i+1]) >= 0 {
			i++
		}
		b.WriteByte(p[i])
	}
	return b.String()
}

// quotedPattern is a pattern that means p only.
func quotedPattern(p string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(p)
}

// matchName is path.Match with [!x] besides [^x]; a name that begins with a dot has to be meant.
func matchName(pattern, name string) bool {
	if strings.HasPrefix(name, ".") && !strings.HasPrefix(pattern, ".") {
		return false
	}
	ok, err := path.Match(strings.ReplaceAll(pattern, "[!", "[^"), name)
	return ok && err == nil
}

// Expand gives the files that clean paths mean, each at least one, in the order given.
func Expand(ctx context.Context, c sigma.Namespace, paths []string) ([]string, error) {
	var out []string
	for _, p := range paths {
		found, err := ExpandOne(ctx, c, p)
		if err != nil {
			return nil, err
		}
		out = append(out, found...)
	}
	return out, nil
}

// ExpandOne gives the files that a clean path means, at least one.
func ExpandOne(ctx context.Context, c sigma.Namespace, p string) ([]string, error) {
	names, err := sigma.ParsePath(p)
	if err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(names, isPattern) {
		return []string{Unquoted(p)}, nil
	}
	found, known := []string{"/"}, true
	for _, name := range names {
		if !isPattern(name) {
			for i := range found {
				found[i] = path.Join(found[i], Unquoted(name))
			}
			known = false
			continue
		}
		if found, err = matching(ctx, c, found, name); err != nil {
			return nil, err
		}
		known = true
	}
	if !known { // names after the last pattern may not be there
		if found, err = existing(ctx, c, found); err != nil {
			return nil, err
		}
	}
	if len(found) == 0 {
		if _, err := c.Lstat(ctx, p); err == nil {
			return []string{p}, nil
		}
		return nil, &sigma.Error{Op: "files.Expand", Path: p, Kind: sigma.KindNotFound,
			Msg:  "no file of the realm matches",
			Hint: `if a name has a *, ? or [ in it, write a backslash before it, in quotes: '` + quotedPattern(p) + `'`}
	}
	return found, nil
}

// matching gives the entries of dirs that match. What is no directory has none.
func matching(ctx context.Context, c sigma.Namespace, dirs []string, pattern string) ([]string, error) {
	matches := make([][]string, len(dirs))
	err := Each(ctx, len(dirs), func(ctx context.Context, i int) error {
		entries, err := c.ReadDir(ctx, dirs[i])
		if k := sigma.KindOf(err); err != nil && (k == sigma.KindNotFound || k == sigma.KindNotDir ||
			k == sigma.KindUnsupported) {
			return nil
		}
		for _, e := range entries {
			if matchName(pattern, e.Name) {
				matches[i] = append(matches[i], path.Join(dirs[i], e.Name))
			}
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return bounded(slices.Concat(matches...), pattern)
}

func existing(ctx context.Context, c sigma.Namespace, paths []string) ([]string, error) {
	there := make([]bool, len(paths))
	err := Each(ctx, len(paths), func(ctx context.Context, i int) error {
		_, err := c.Lstat(ctx, paths[i])
		if k := sigma.KindOf(err); err != nil && k != sigma.KindNotFound && k != sigma.KindNotDir {
			return err
		}
		there[i] = err == nil
		return nil
	})
	var out []string
	for i, p := range paths {
		if there[i] {
			out = append(out, p)
		}
	}
	return out, err
}

func bounded(paths []string, pattern string) ([]string, error) {
	if len(paths) > matchesMax {
		return nil, &sigma.Error{Op: "files.Expand", Path: pattern, Kind: sigma.KindTooBig,
			Msg: "matches more than 100,000 files", Hint: "name their directory, or write a narrower pattern"}
	}
	return paths, nil
}
