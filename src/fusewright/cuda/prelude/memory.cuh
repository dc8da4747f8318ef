//: fw_shared
extern __shared__ __align__(1024) unsigned char fw_shared[];
