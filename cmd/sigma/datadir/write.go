package datadir

import (
	"sigmaos.dev/hostdir"
)

// Write makes a small file, for its owner alone, that is there whole or not at all, also when
// the disk is full or the machine stops. A uid other than -1 owns it.
func Write(path, text string, uid int) error {
	f, err := hostdir.Create(path, 0o600)
	if err != nil {
		return Explain(path, err)
	}
	defer f.Drop()
	if _, err = f.WriteString(text); err == nil {
		err = f.Chown(uid, uid)
	}
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = f.Commit()
	}
	if err != nil {
		return Explain(path, err)
	}
	return nil
}
