
G("services of the host", "make a UNIX socket")
A("socket UNIX stream", SECCOMP, R(0), socket(AF_UNIX, SOCK_STREAM, 0))
A("socket UNIX datagram", SECCOMP, R(0), socket(AF_UNIX, SOCK_DGRAM, 0))
A("socketpair", SECCOMP, R(0), ({ int f[2]; socketpair(AF_UNIX, SOCK_STREAM, 0, f); }))

G("networks", "make an IP socket")
A("socket INET stream", SECCOMP, R(0), socket(AF_INET, SOCK_STREAM, 0))
A("socket INET datagram", SECCOMP, R(0), socket(AF_INET, SOCK_DGRAM, 0))
A("socket MPTCP", SECCOMP, R(EPROTONOSUPPORT, ENOPROTOOPT), socket(AF_INET, SOCK_STREAM, 262))
A("socket SCTP", SECCOMP, R(EPROTONOSUPPORT, ESOCKTNOSUPPORT), socket(AF_INET, SOCK_SEQPACKET, 132))
A("socket INET6 stream", SECCOMP, R(EAFNOSUPPORT), socket(AF_INET6, SOCK_STREAM, 0))
A("socket SMC", SECCOMP, R(EAFNOSUPPORT), socket(43, SOCK_STREAM, 0))
A("socket RDS", SECCOMP, R(EAFNOSUPPORT), socket(AF_RDS, SOCK_SEQPACKET, 0))

G("networks", "make a raw or packet socket")
A("socket INET raw", SECCOMP | CAPS, R(0), socket(AF_INET, SOCK_RAW, IPPROTO_ICMP))
A("socket INET6 raw", SECCOMP | CAPS, R(EAFNOSUPPORT), socket(AF_INET6, SOCK_RAW, IPPROTO_ICMPV6))
A("socket PACKET", SECCOMP | CAPS, R(EAFNOSUPPORT), socket(AF_PACKET, SOCK_RAW, 0))
A("socket XDP", SECCOMP | CAPS, R(EAFNOSUPPORT), socket(44, SOCK_RAW, 0))
A("setsockopt PACKET_RX_RING", SECCOMP, R(EOPNOTSUPP), option(263, 5))

G("the kernel's configuration", "make a netlink socket")
A("socket NETLINK route", SECCOMP, R(0), socket(AF_NETLINK, SOCK_RAW, 0))
A("socket NETLINK audit", SECCOMP, R(EPROTONOSUPPORT), socket(AF_NETLINK, SOCK_RAW, 9))
A("socket NETLINK uevent", SECCOMP, R(EPROTONOSUPPORT), socket(AF_NETLINK, SOCK_RAW, 15))
A("socket KEY", SECCOMP | CAPS, R(EAFNOSUPPORT), socket(AF_KEY, SOCK_RAW, 2))

G("the machine's hypervisor", "make a socket to the hypervisor")
A("socket VSOCK", SECCOMP, R(EAFNOSUPPORT), socket(AF_VSOCK, SOCK_STREAM, 0))

G("the kernel's attack surface", "use the kernel's ciphers by a socket")
A("socket ALG", SECCOMP, R(EAFNOSUPPORT), socket(AF_ALG, SOCK_SEQPACKET, 0))

G("the kernel's attack surface", "load a rare protocol")
A("socket BLUETOOTH", SECCOMP, R(EAFNOSUPPORT, EPROTONOSUPPORT), socket(AF_BLUETOOTH, SOCK_RAW, 1))
A("socket CAN", SECCOMP, R(EAFNOSUPPORT, EPROTONOSUPPORT), socket(AF_CAN, SOCK_RAW, 1))
A("socket TIPC", SECCOMP, R(EAFNOSUPPORT), socket(AF_TIPC, SOCK_RDM, 0))
A("socket KCM", SECCOMP, R(EAFNOSUPPORT), socket(AF_KCM, SOCK_DGRAM, 0))
A("socket NFC", SECCOMP, R(EAFNOSUPPORT), socket(AF_NFC, SOCK_SEQPACKET, 0))
A("socket QIPCRTR", SECCOMP, R(EAFNOSUPPORT), socket(42, SOCK_DGRAM, 0))
A("socket PPPOX", SECCOMP, R(EAFNOSUPPORT), socket(AF_PPPOX, SOCK_STREAM, 0))
A("socket IEEE802154", SECCOMP, R(EAFNOSUPPORT), socket(AF_IEEE802154, SOCK_DGRAM, 0))
A("socket PHONET", SECCOMP, R(EAFNOSUPPORT), socket(AF_PHONET, SOCK_DGRAM, 0))
A("socket AX25", SECCOMP, R(EAFNOSUPPORT), socket(AF_AX25, SOCK_DGRAM, 0))
A("socket X25", SECCOMP, R(EAFNOSUPPORT), socket(AF_X25, SOCK_SEQPACKET, 0))

G("services of the host", "connect a passed socket elsewhere")
A("connect a passed socket", SECCOMP | LANDLOCK, R(EISCONN, ECONNREFUSED, EINVAL), connect(3, (void *)host_address(), sizeof(struct sockaddr_un)))

G("services of the host", "disconnect a passed socket to use it again")
A("disconnect a passed socket", SECCOMP, R(EINVAL, EISCONN, ECONNREFUSED), ({ struct sockaddr a = {AF_UNSPEC}; connect(3, &a, sizeof a); }))

G("services of the host", "bind a passed socket")
A("bind a passed socket", SECCOMP, R(0), bind(3, (void *)host_address(), sizeof(struct sockaddr_un)))

G("services of the host", "listen on a passed socket")
A("listen on a passed socket", SECCOMP, R(EINVAL), listen(3, 1))
A("accept on a passed socket", SECCOMP, R(EINVAL), syscall(SYS_accept, 3, NULL, NULL))
A("accept4 on a passed socket", SECCOMP, R(EINVAL), accept4(3, NULL, NULL, 0))

G("descriptors of other procs", "pass a descriptor on")
A("pass a descriptor on", SECCOMP, R(EOPNOTSUPP), pass_descriptor(0))
A("pass descriptors on", SECCOMP, R(EOPNOTSUPP), pass_descriptor(1))

G("services of the host", "send to another address")
A("send to an address", SECCOMP, R(EOPNOTSUPP, EISCONN), sendto(3, "", 1, MSG_OOB, (void *)host_address(), sizeof(struct sockaddr_un)))

G("messages between others", "attach a filter to a passed socket")
A("setsockopt SO_ATTACH_FILTER", SECCOMP, R(0), attach_filter())
A("setsockopt SO_ATTACH_BPF", SECCOMP, R(EINVAL, EBADF), option(SOL_SOCKET, SO_ATTACH_BPF))
A("setsockopt SO_ATTACH_REUSEPORT_CBPF", SECCOMP, R(EINVAL, ENOMEM), option(SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF))
A("setsockopt SO_DETACH_FILTER", SECCOMP, R(ENOENT), option(SOL_SOCKET, SO_DETACH_FILTER))
A("setsockopt SO_LOCK_FILTER", SECCOMP, R(0), option(SOL_SOCKET, SO_LOCK_FILTER))
A("getsockopt SO_GET_FILTER", SECCOMP, R(0), ask_option(SOL_SOCKET, SO_GET_FILTER))

G("networks", "bind a socket to a device")
A("setsockopt SO_BINDTODEVICE", SECCOMP, R(ENODEV), setsockopt(3, SOL_SOCKET, SO_BINDTODEVICE, "attack0", 8))
A("setsockopt SO_BINDTOIFINDEX", SECCOMP, R(0, ENODEV), option(SOL_SOCKET, SO_BINDTOIFINDEX))

G("the process behind a socket", "ask for the credentials of senders")
A("setsockopt SO_PASSCRED", SECCOMP, R(0), option(SOL_SOCKET, SO_PASSCRED))
A("setsockopt SO_PASSSEC", SECCOMP, R(EOPNOTSUPP), option(SOL_SOCKET, SO_PASSSEC))
A("setsockopt SO_PASSPIDFD", SECCOMP, R(ENOPROTOOPT), option(SOL_SOCKET, 76))

G("networks", "mark packets")
A("setsockopt SO_MARK", SECCOMP | CAPS, R(0), option(SOL_SOCKET, SO_MARK))

G("networks", "set the priority of packets")
A("setsockopt SO_PRIORITY", SECCOMP, R(0), option(SOL_SOCKET, SO_PRIORITY))

G("networks", "share or take over an address")
A("setsockopt SO_REUSEPORT", SECCOMP, R(EOPNOTSUPP), option(SOL_SOCKET, SO_REUSEPORT))
A("setsockopt SO_REUSEADDR", SECCOMP, R(0), option(SOL_SOCKET, SO_REUSEADDR))
A("setsockopt SO_BROADCAST", SECCOMP, R(0), option(SOL_SOCKET, SO_BROADCAST))

G("memory of the machine", "take more buffer than allowed")
A("setsockopt SO_SNDBUFFORCE", SECCOMP | CAPS, R(0), option(SOL_SOCKET, SO_SNDBUFFORCE))
A("setsockopt SO_RCVBUFFORCE", SECCOMP | CAPS, R(0), option(SOL_SOCKET, SO_RCVBUFFORCE))
A("setsockopt SO_RESERVE_MEM", SECCOMP, R(EOPNOTSUPP), option(SOL_SOCKET, 73))

G("the kernel's attack surface", "set rare options of a socket")
A("setsockopt SO_DEBUG", SECCOMP | CAPS, R(0), option(SOL_SOCKET, SO_DEBUG))
A("setsockopt SO_TIMESTAMPING", SECCOMP, R(0), option(SOL_SOCKET, SO_TIMESTAMPING))
A("setsockopt SO_BUSY_POLL", SECCOMP | CAPS, R(0), option(SOL_SOCKET, SO_BUSY_POLL))
A("setsockopt SO_PEEK_OFF", SECCOMP, R(0), option(SOL_SOCKET, SO_PEEK_OFF))
A("setsockopt SO_TXREHASH", SECCOMP, R(EOPNOTSUPP, ENOPROTOOPT), option(SOL_SOCKET, 74))
A("setsockopt SO_MAX_PACING_RATE", SECCOMP, R(0), option(SOL_SOCKET, SO_MAX_PACING_RATE))
A("setsockopt SO_ZEROCOPY", SECCOMP, R(EOPNOTSUPP), option(SOL_SOCKET, SO_ZEROCOPY))
A("setsockopt SO_TXTIME", SECCOMP, R(EINVAL), option(SOL_SOCKET, SO_TXTIME))
A("setsockopt SO_MEMINFO", SECCOMP, R(ENOPROTOOPT), option(SOL_SOCKET, SO_MEMINFO))

G("networks", "forge headers of packets")
A("setsockopt IP_TTL", SECCOMP, R(EOPNOTSUPP), option(IPPROTO_IP, 2))
A("setsockopt IP_HDRINCL", SECCOMP, R(EOPNOTSUPP), option(IPPROTO_IP, 3))
A("setsockopt IP_OPTIONS", SECCOMP, R(EOPNOTSUPP), option(IPPROTO_IP, 4))
A("setsockopt IP_TRANSPARENT", SECCOMP, R(EOPNOTSUPP), option(IPPROTO_IP, 19))
A("setsockopt IPV6_HDRINCL", SECCOMP, R(EOPNOTSUPP), option(IPPROTO_IPV6, 36))

G("networks", "change the host's packet filter")
A("setsockopt IPT_SO_SET_REPLACE", SECCOMP, R(EOPNOTSUPP), option(IPPROTO_IP, 64))

G("networks", "repair a TCP connection")
A("setsockopt TCP_REPAIR", SECCOMP, R(EOPNOTSUPP), option(IPPROTO_TCP, 19))

G("the kernel's attack surface", "give a socket an upper layer")
A("setsockopt TCP_ULP", SECCOMP, R(EOPNOTSUPP), option(IPPROTO_TCP, 31))

G("networks", "choose another congestion control")
A("setsockopt TCP_CONGESTION", SECCOMP, R(EOPNOTSUPP), option(IPPROTO_TCP, 13))
A("setsockopt TCP_FASTOPEN", SECCOMP, R(EOPNOTSUPP), option(IPPROTO_TCP, 23))
A("setsockopt TCP_MD5SIG", SECCOMP, R(EOPNOTSUPP), option(IPPROTO_TCP, 14))
A("setsockopt UDP_CORK", SECCOMP, R(EOPNOTSUPP), option(IPPROTO_UDP, 1))

G("the kernel's configuration", "set options of other families")
A("setsockopt NETLINK_ADD_MEMBERSHIP", SECCOMP, R(EOPNOTSUPP), option(270, 1))
A("setsockopt ALG_SET_KEY", SECCOMP, R(EOPNOTSUPP), option(279, 1))

G("the filter", "hide a level in the high half of an argument")
A("setsockopt with a high half", SECCOMP, R(EOPNOTSUPP, ENOPROTOOPT), setsockopt(3, 0x101, 0, &(int){1}, 4))
A("fcntl with a high half", SECCOMP, R(EINVAL), fcntl(0, 0x10003, 0))

G("the process behind a socket", "take a handle on the process behind")
A("getsockopt SO_PEERPIDFD: a handle on sigmad", SECCOMP, R(ENOPROTOOPT, ESRCH), ask_option(SOL_SOCKET, 77))

G("the process behind a socket", "ask who is behind")
A("getsockopt SO_PEERGROUPS: sigmad's groups", SECCOMP, R(ERANGE), ask_option(SOL_SOCKET, SO_PEERGROUPS))
A("getsockopt SO_PEERSEC", SECCOMP, R(ENOPROTOOPT), ask_option(SOL_SOCKET, SO_PEERSEC))
A("getsockopt SO_COOKIE", SECCOMP, R(0), ask_option(SOL_SOCKET, SO_COOKIE))
A("getsockopt SO_MEMINFO", SECCOMP, R(0), ask_option(SOL_SOCKET, SO_MEMINFO))
