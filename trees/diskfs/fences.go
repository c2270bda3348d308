package diskfs

import (
	"context"
	"os"

	"golang.org/x/sys/unix"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/fence"
)

// The fences of a realm are in the file fences beside its tree, which is replaced as a whole.
const (
	fencesFile = "fences"
	fencesNew  = "fences.new"
	fencesMax  = 4*fence.NamesMax + 32*fence.FencesMax // every byte of a name may be quoted as \xff
)

// loadFences reads what was saved. A realm whose list of fences cannot be read is not served: a
// deposed leader might come.
func (sp *space) loadFences() error {
	fd, err := openAt(sp.home, fencesFile, unix.O_RDONLY)
	if err == unix.ENOENT {
		sp.fences = fence.NewTable(fence.Config{Save: sp.saveFences})
		return nil
	}
	if err != nil {
		return err
	}
	defer closeFD(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	data := make([]byte, min(st.Size, fencesMax))
	for done := 0; done < len(data); {
		n, err := unix.Pread(fd, data[done:], int64(done))
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		if n == 0 {
			data = data[:done]
		}
		done += n
	}
	known, err := fence.Decode(data)
	if err != nil {
		return err
	}
	sp.fences = fence.NewTable(fence.Config{Known: known, Save: sp.saveFences})
	return nil
}

// saveFences puts the list onto the disk before it returns. It is called for one raise at a time.
func (sp *space) saveFences(ctx context.Context, _ sigma.Fence, all []sigma.Fence) error {
	const op = "diskfs.saveFences"
	sp.names.RLock() // keeps sp.home open
	home := -1
	err := sp.alive(op)
	if err == nil {
		home, err = unix.FcntlInt(uintptr(sp.home), unix.F_DUPFD_CLOEXEC, 0)
	}
	sp.names.RUnlock()
	if err != nil {
		return wrap(op, "", err)
	}
	defer closeFD(home)
	fd, err := openAt(home, fencesNew, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC)
	if err != nil {
		return wrap(op, "", err)
	}
	file := os.NewFile(uintptr(fd), fencesNew)
	_, err = file.Write(fence.Encode(all))
	if err == nil {
		err = file.Sync()
	}
	if cerr := file.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = retry(func() error { return unix.Renameat(home, fencesNew, home, fencesFile) })
	}
	if err == nil {
		err = retry(func() error { return unix.Fsync(home) })
	}
	return wrap(op, "", err)
}
