fn main() {
    println!("hello rust {}", std::thread::spawn(|| 7).join().unwrap())
}
