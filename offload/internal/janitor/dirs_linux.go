package janitor

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// Each name below a root is opened alone, in the folder before it, and never through a
// symbolic link. So whoever may write below the root cannot lead the janitor out of it.

// openDir opens a folder in another one.
func openDir(at int, name string) (int, error) {
	for {
		fd, err := unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
}

// isAbsent reports whether an error means that there is no such folder or file, but maybe
// something else of its name.
func isAbsent(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ESTALE)
}

// names calls f for each name in a folder that was just opened.
func names(fd int, buf []byte, f func(name string)) error {
	var list []string
	for {
		n, err := unix.ReadDirent(fd, buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n <= 0 {
			return err
		}
		_, _, list = unix.ParseDirent(buf[:n], -1, list[:0])
		for _, name := range list {
			f(name)
		}
	}
}

// fileState has the attributes of a regular file.
type fileState struct {
	bytes           int64
	written, access int64 // Unix ns
	changed         int64 // of the data or the inode
}

// stat returns the state of a file, which is absent if it is not a regular one.
func stat(at int, name string) (fileState, error) {
	var st unix.Stat_t
	if err := unix.Fstatat(at, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fileState{}, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return fileState{}, unix.ENOENT
	}
	return fileState{bytes: st.Size, written: unix.TimespecToNsec(st.Mtim), access: unix.TimespecToNsec(st.Atim), changed: unix.TimespecToNsec(st.Ctim)}, nil
}

// read reports whether a file was read after it was written.
func (s fileState) read() bool { return s.access > s.written }

// disarmed reports whether another read would not move the access time under relatime.
func (s fileState) disarmed() bool { return s.read() && s.access > s.changed }

// rearm makes the next read of a file move its access time again. Under relatime a read
// does so if the last access is before the last change of the file's data or inode
// (relatime_need_update in fs/inode.c of Linux 6.12); setting the access time to what it is
// is such a change. So the time of the last read stays in the file over a restart.
func rearm(at int, name string, s fileState) error {
	return setAccess(at, name, s.access)
}

func setAccess(at int, name string, access int64) error {
	times := []unix.Timespec{unix.NsecToTimespec(access), {Nsec: unix.UTIME_OMIT}}
	return unix.UtimesNanoAt(at, name, times, unix.AT_SYMLINK_NOFOLLOW)
}

// readFile reads a regular file of at most most bytes.
func readFile(at int, name string, most int64) ([]byte, error) {
	fd, err := unix.Openat(at, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	if st, err := f.Stat(); err != nil {
		return nil, err
	} else if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", name)
	}
	return io.ReadAll(io.LimitReader(f, most))
}

// probeReads reports whether a read moves an access time that was set back: with a file of
// its own in the root, which it deletes.
func probeReads(root int, now int64) (err error) {
	const name = ".kvoffload-probe"
	if err := unix.Unlinkat(root, name, 0); err != nil && !isAbsent(err) { // of a janitor that was killed
		return fmt.Errorf("a file to try it with: %w", err)
	}
	fd, err := unix.Openat(root, name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return fmt.Errorf("a file to try it with: %w", err)
	}
	defer func() {
		err = errors.Join(err, unix.Unlinkat(root, name, 0))
		unix.Close(fd)
	}()
	if _, err := unix.Write(fd, []byte{1}); err != nil {
		return fmt.Errorf("a file to try it with: %w", err)
	}
	back := now - 3600e9
	if err := setAccess(root, name, back); err != nil {
		return fmt.Errorf("setting an access time: %w", err)
	}
	if _, err := unix.Pread(fd, make([]byte, 1), 0); err != nil {
		return fmt.Errorf("a file to try it with: %w", err)
	}
	if s, err := stat(root, name); err != nil {
		return fmt.Errorf("a file to try it with: %w", err)
	} else if s.access <= back {
		return errors.New("a read does not move access times here (noatime, or a network file system)")
	}
	return nil
}

// isNetwork reports whether others than this kernel may change the files of a file system,
// which inotify does not see.
func isNetwork(fd int) (bool, error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd, &st); err != nil {
		return false, err
	}
	switch uint32(st.Type) {
	case unix.NFS_SUPER_MAGIC, unix.SMB_SUPER_MAGIC, unix.SMB2_SUPER_MAGIC, unix.CIFS_SUPER_MAGIC, unix.FUSE_SUPER_MAGIC,
		unix.CEPH_SUPER_MAGIC, unix.AFS_SUPER_MAGIC, unix.AFS_FS_MAGIC, unix.V9FS_MAGIC, unix.CODA_SUPER_MAGIC,
		0x0bd00bd0, 0x47504653, 0x19830326, 0x01161970, 0x7461636f: // Lustre, GPFS, BeeGFS, GFS2, OCFS2
		return true, nil
	}
	return false, nil
}
